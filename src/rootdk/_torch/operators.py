"""The operators as torch knows them: rootdk::attention_forward and rootdk::attention_backward.

Each has a function that computes (values.py), one that only says shapes (for torch.compile) and a derivative
(gradient.py).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._arguments import check_shapes
from .._backends import torch_kernel
from . import gradient
from .values import BACKWARD, FORWARD, backward_values, empty_reading, forward_values

_made = partial(torch.library.custom_op, mutates_args=())
attention_forward = _made("rootdk::attention_forward", forward_values, schema=FORWARD)
attention_backward = _made("rootdk::attention_backward", backward_values, schema=BACKWARD)


@attention_forward.register_fake  # type: ignore[untyped-decorator]
def _(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    reading, keys = empty_reading(query, options[-1])
    return torch_kernel.empty_out(query, value), torch_kernel.empty_row_state(query), reading, keys


@attention_backward.register_fake  # type: ignore[untyped-decorator]
def _(d_out: Tensor, out: Tensor, row_state: Tensor, query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Any:  # noqa: ARG001
    learned, bias, sinks, bias_learned = options[1], options[10], options[11], options[14]
    return (
        *torch_kernel.empty_gradients(query, key, value),
        query.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape),
        query.new_empty(0) if learned is None else learned.new_empty(learned.shape),
        bias.new_empty(bias.shape) if bias_learned else query.new_empty(0),
    )


attention_forward.register_autograd(partial(gradient.pull_back, attention_backward), setup_context=gradient.keep)
attention_backward.register_autograd(gradient.second, setup_context=gradient.keep_second)
