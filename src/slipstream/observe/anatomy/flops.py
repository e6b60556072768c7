"""Counts the floating-point operations of one operator from its recorded shapes. Only contractions are counted, and a
multiply-add counts as two. For an operator without a formula, the operators that it calls are counted instead."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

Shapes = list[list[int]]
Formula = Callable[[Shapes, list[Any]], int]


def count_flops(name: str, shapes: Shapes, values: list[Any]) -> int:
    """Returns the FLOPs of an operator that has a formula, or 0 if its shapes do not fit the formula (nested or sparse
    tensors)."""
    try:
        return int(FORMULAS[name](shapes, values))
    except (IndexError, TypeError, ValueError):
        return 0


def _mm(shapes: Shapes, _: list[Any], first: int = 0) -> int:
    rows, inner = shapes[first]
    return 2 * rows * inner * shapes[first + 1][1]


def _addmm(shapes: Shapes, values: list[Any]) -> int:
    return _mm(shapes, values, first=1)


def _bmm(shapes: Shapes, _: list[Any], first: int = 0) -> int:
    batch, rows, inner = shapes[first]
    return 2 * batch * rows * inner * shapes[first + 1][2]


def _baddbmm(shapes: Shapes, values: list[Any]) -> int:
    return _bmm(shapes, values, first=1)


def _mv(shapes: Shapes, _: list[Any], first: int = 0) -> int:
    return 2 * prod(shapes[first])


def _addmv(shapes: Shapes, values: list[Any]) -> int:
    return _mv(shapes, values, first=1)


def _convolution(shapes: Shapes, values: list[Any]) -> int:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)"""
    inputs, weight = shapes[0], shapes[1]
    num_spatial = len(weight) - 2
    if values[6]:
        # Transposed: every input position is multiplied with the whole kernel.
        return 2 * inputs[0] * prod(inputs[2:]) * prod(weight)
    stride, padding, dilation = (_spread(values[index], num_spatial) for index in (3, 4, 5))
    outputs = 1
    for index in range(num_spatial):
        reach = dilation[index] * (weight[2 + index] - 1) + 1
        outputs *= (inputs[2 + index] + 2 * padding[index] - reach) // stride[index] + 1
    return 2 * inputs[0] * outputs * prod(weight)


def _convolution_backward(shapes: Shapes, values: list[Any]) -> int:
    """convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
    output_padding, groups, output_mask). The product is counted once for each gradient that is requested: of the input
    and of the weight."""
    outputs, inputs, weight = shapes[0], shapes[1], shapes[2]
    positions = inputs if values[7] else outputs
    wanted = sum(bool(is_wanted) for is_wanted in values[10][:2])
    return wanted * 2 * positions[0] * prod(positions[2:]) * prod(weight)


def _spread(value: Any, count: int) -> list[int]:
    numbers = [int(number) for number in value]
    return numbers * count if len(numbers) == 1 else numbers


def _attention(query: list[int], key: list[int], value: list[int]) -> int:
    """Counts the scores and their product with the values. A causal mask is ignored, as is usual."""
    *batch, rows, width = query
    columns, out_width = key[-2], value[-1]
    return 2 * prod(batch) * rows * columns * (width + out_width)


def _attention_forward(shapes: Shapes, _: list[Any]) -> int:
    return _attention(shapes[0], shapes[1], shapes[2])


def _attention_backward(shapes: Shapes, _: list[Any]) -> int:
    """(grad_output, query, key, value, ...): five products, where the forward pass has two. One of the five recomputes
    the scores."""
    *batch, rows, width = shapes[1]
    columns, out_width = shapes[2][-2], shapes[3][-1]
    return 2 * prod(batch) * rows * columns * (3 * width + 2 * out_width)


def _efficient_attention(shapes: Shapes, _: list[Any]) -> int:
    """The memory-efficient kernel takes tensors in the order batch, rows, heads, width."""
    query, key, value = ([shape[0], shape[2], shape[1], shape[3]] for shape in shapes[:3])
    return _attention(query, key, value)


def _mkldnn_rnn(shapes: Shapes, _: list[Any]) -> int:
    """One layer, one direction: (input, input weight, hidden weight, ...)"""
    return 2 * shapes[0][0] * shapes[0][1] * (prod(shapes[1]) + prod(shapes[2]))


def _mkldnn_rnn_backward(shapes: Shapes, values: list[Any]) -> int:
    return 2 * _mkldnn_rnn(shapes, values)


def _cudnn_rnn(shapes: Shapes, values: list[Any], first: int = 6) -> int:
    mode, hidden, num_layers, directions = values[first], values[first + 1], values[first + 3], 1 + values[first + 7]
    gates = {2: 4, 3: 3}.get(mode, 1)
    width, total = shapes[0][2], 0
    for _ in range(num_layers):
        total += directions * gates * hidden * (width + hidden)
        width = directions * hidden
    return 2 * shapes[0][0] * shapes[0][1] * total


def _cudnn_rnn_backward(shapes: Shapes, values: list[Any]) -> int:
    return 2 * _cudnn_rnn(shapes, values, first=10)


_FUSED = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
FORMULAS: dict[str, Formula] = {
    "aten::mm": _mm,
    "aten::_int_mm": _mm,
    "aten::_scaled_mm": _mm,
    "aten::addmm": _addmm,
    "aten::addmm_": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::baddbmm_": _baddbmm,
    "aten::addbmm": _baddbmm,
    "aten::mv": _mv,
    "aten::dot": _mv,
    "aten::vdot": _mv,
    "aten::addmv": _addmv,
    "aten::addmv_": _addmv,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_efficient_attention_forward": _efficient_attention,
    "aten::mkldnn_rnn_layer": _mkldnn_rnn,
    "aten::mkldnn_rnn_layer_backward": _mkldnn_rnn_backward,
    "aten::_cudnn_rnn": _cudnn_rnn,
    "aten::_cudnn_rnn_backward": _cudnn_rnn_backward,
    **{f"aten::_scaled_dot_product_{kind}": _attention_forward for kind in _FUSED},
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention_backward for kind in _FUSED},
}
