"""The weights of one row, read off the operator: it never writes them down itself."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.attention import attention


def keys_in_order(query: NDArray[Any], key: NDArray[Any]) -> NDArray[Any]:
    """Which key scores highest, second, ... for the first query; no positive scale changes that."""
    # einsum and not @: so small a product BLAS shares among threads, and waiting for them takes longer.
    return np.argsort(-np.einsum("d,nd->n", query[0], key))


def weights_at(query: NDArray[Any], key: NDArray[Any], places: NDArray[Any], scale: Any) -> NDArray[Any]:
    """The weights that the first query gives these keys: values that are 1 at one of them and 0 elsewhere.

    >>> weights_at(np.ones((1, 4)), np.zeros((8, 4)), np.array([0, 7]), "sqrt").tolist()
    [0.125, 0.125]
    """
    value = np.zeros((len(key), len(places)), key.dtype)
    value[places, np.arange(len(places))] = 1
    return np.asarray(attention(query[:1], key, value, scale=scale)[0])
