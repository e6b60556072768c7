"""Classifies operators by the kind of work they do: tensor contraction, statistical normalisation, element-wise, or
other, after Ivanov et al., "Data Movement Is All You Need" (2021). Also lists the operators that do no work at all."""

from __future__ import annotations

import functools
import re

from slipstream.records.anatomy import OperatorClass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONTRACTION = re.compile(
    r"""^( (sparse_)?(add)?mm | b?addbmm | addbmm | bmm | .*matmul.* | linear(_backward)? | mv | addmv | v?dot | ger
        | addr | outer | inner | einsum | tensordot | kron | bilinear | trilinear | cdist.* | .*_mm | addmm_activation
        | .*conv(?!ert).* | .*scaled_dot_product.* | .*(flash|efficient|cudnn)_attention.* | .*multi_head_attention.*
        | lstm(_mps.*)? | gru | rnn_(tanh|relu).* | .*cudnn_rnn.* | miopen_rnn.* | mkldnn_rnn.* | mkldnn_linear.*
        | lstm_cell | gru_cell | .*_linear.* | .*transformer_encoder_layer.* )$""",
    re.VERBOSE,
)
_NORMALISATION = re.compile(
    r"""^( .*softmax.* | .*norm(?!al).* | .*logsumexp.* | (nan)?sum(_to_size)? | (nan)?mean | var(_mean)? | std(_mean)?
        | prod | a?max | a?min | aminmax | argmax | argmin | (nan)?median | mode | any | all | count_nonzero | trace
        | cum(sum|prod|max|min) | logcumsumexp | .*_loss(_nd|2d|_forward|_backward)?.* | .*_pool\d?d?.*
        | segment_reduce.* | batch_norm.* | .*cosine_similarity.* | renorm | dist | kl_div )$""",
    re.VERBOSE,
)
_ELEMENTWISE = _words(
    """
    abs absolute acos add addcdiv addcmul angle asin atan atan2 bernoulli bitwise_and bitwise_not bitwise_or
    bitwise_xor cat ceil celu clamp clamp_max clamp_min clip clone complex contiguous copy copysign cos cosh div divide
    dropout native_dropout feature_dropout alpha_dropout elu eq erf erfc erfinv exp exp2 expm1 exponential fill floor
    floor_divide fmod frac fused_dropout ge gelu geometric glu gt hardshrink hardsigmoid hardswish hardtanh hypot
    isfinite isinf isnan le leaky_relu lerp log log10 log1p log2 logaddexp logical_and logical_not logical_or
    logical_xor logit log_sigmoid log_sigmoid_forward lt masked_fill masked_fill_ masked_scale maximum minimum mish mul
    multiply nan_to_num ne neg negative normal ones ones_like full full_like pow prelu prelu_kernel rand randn random
    real reciprocal relu relu6 remainder repeat round rrelu rrelu_with_noise rsqrt rsub selu sgn sigmoid sign silu sin
    sinh softplus softshrink sqrt square stack sub subtract swiglu tan tanh threshold to to_copy tril triu true_divide
    trunc uniform where xlogy zero zeros zeros_like imag conj_physical conj copy_from_and_resize pin_memory
    thnn_fused_lstm_cell thnn_fused_gru_cell amp_update_scale amp_foreach_non_finite_check_and_unscale
    fused_adam fused_adamw fused_sgd fused_adagrad cast_bfloat16 pad constant_pad_nd roll flip
    """
)
_FREE = _words(
    """
    adjoint alias as_strided broadcast_tensors broadcast_to chunk cudnn_is_acceptable data detach diagonal empty
    empty_like empty_strided expand expand_as flatten has_compatible_shallow_copy_type is_nonzero is_pinned is_same_size
    item lift_fresh local_scalar_dense mH mT matrix_H movedim moveaxis narrow new_empty new_empty_strided numpy_T
    permute record_stream reshape reshape_alias resize resize_as resolve_conj resolve_neg result_type select set size
    slice split split_with_sizes squeeze stride swapaxes swapdims t tensor_split transpose unbind unflatten unfold
    unsafe_split unsafe_view unsqueeze values view view_as view_as_complex view_as_real
    """
)


@functools.lru_cache(maxsize=4096)
def classify(name: str) -> OperatorClass:
    bare = bare_name(name)
    if bare in _FREE:
        return "other"
    if _CONTRACTION.match(bare):
        return "contraction"
    forward = re.sub(r"_backward(_data|_input|_weight|_no_stats)?$", "", bare)
    if forward in _ELEMENTWISE or bare in _ELEMENTWISE:
        return "elementwise"
    if _NORMALISATION.match(bare):
        return "normalisation"
    return "other"


@functools.lru_cache(maxsize=4096)
def is_free(name: str) -> bool:
    """Whether the operator moves and computes nothing: a view, an allocation, a query."""
    return bare_name(name) in _FREE


def is_operator(name: str) -> bool:
    """Whether the name belongs to a library of operators, such as aten::add. Autograd nodes and ranges are not
    operators."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd::", "slipstream::", "torch::jit"))


def bare_name(name: str) -> str:
    """Returns "add" for "aten::_foreach_add_"."""
    bare = name.rpartition("::")[2]
    bare = bare.strip("_")
    return bare.removeprefix("foreach_")
