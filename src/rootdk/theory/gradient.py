"""How much of a change of the query arrives in the output: |do/dq| against |o|.

With o = sum p_j v_j the derivative to the query is do/dq = scale sum_j p_j v_j (k_j - sum p k)'. For standard normal v
it has E_v |do/dq|_F^2 = d_v scale^2 sum_j p_j^2 |k_j - sum p k|^2, and E_v |o|^2 = d_v sum p^2. Split k along q and
across. Across, the d_k - 1 components know nothing of p, and each adds sum_j p_j^2 (1 - 2 p_j + sum p^2) = |J|_F^2.
Along q the component is x_j = s_j/sigma, and p_j (x_j - sum p x) = dp_j/dsigma. So

    E |do/dq|_F^2 / E |o|^2 = scale^2 ((d_k - 1) E |J|_F^2 + E |dp/dsigma|^2) / E sum p^2
"""

from typing import Any

import numpy as np

from ._moments import FIELDS
from .attention import attention_averages, checked


def relative_gradient(keys: Any, d_k: Any, scale: Any) -> Any:
    """sqrt(E |do/dq|_F^2 / E |o|^2) for standard normal q, k and v, whatever the width of v. Exact, by quadrature.

    keys from 2 to 1e15, d_k from 1 to 1e6; all arguments broadcast. Only the scale 1/sqrt(d_k) keeps it near 1 at
    every d_k.

    >>> for d_k in (64, 256):
    ...     print(*(f"{relative_gradient(512, d_k, scale):.3f}" for scale in (1.0, d_k**-0.5, 1 / d_k)))
    2.906 0.995 0.125
    4.067 0.991 0.062
    """
    counts, sizes, scales = checked(keys, d_k, scale)
    found = attention_averages(counts, sizes, scales)
    p_squared, norm_squared, slope_squared = found[2], found[5], found[len(FIELDS)]
    return np.sqrt(scales * scales * ((sizes - 1) * norm_squared + slope_squared) / p_squared)[()]
