import pytest

from slipstream.observe.anatomy.operators import classify, is_free, is_operator


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "contraction",
            "mm addmm bmm baddbmm linear matmul einsum convolution mkldnn_convolution convolution_backward lstm "
            "_scaled_dot_product_flash_attention_for_cpu_backward _flash_attention_forward mkldnn_rnn_layer _cudnn_rnn "
            "cudnn_convolution slow_conv2d_forward _efficient_attention_backward dot mv _addmm_activation",
        ),
        (
            "normalisation",
            "_softmax _log_softmax_backward_data native_layer_norm native_batch_norm_backward native_group_norm sum "
            "mean var_mean linalg_vector_norm logsumexp amax nll_loss_forward max_pool2d_with_indices cumsum rms_norm "
            "avg_pool2d_backward batch_norm cudnn_batch_norm mse_loss",
        ),
        (
            "elementwise",
            "add add_ mul relu clamp_min gelu gelu_backward native_dropout copy_ _to_copy threshold_backward "
            "_foreach_add_ _foreach_sqrt _fused_adamw_ masked_fill_ bernoulli_ normal_ zero_ cat tanh_backward div_",
        ),
        ("other", "embedding index_select gather sort view empty transpose as_strided topk _convert_indices_from_coo"),
    ],
)
def test_classes(kind: str, names: str) -> None:
    assert {name: classify(f"aten::{name}") for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_views_and_allocations_are_free() -> None:
    assert all(is_free(f"aten::{name}") for name in ("view", "empty_strided", "t", "resize_", "_unsafe_view", "detach"))
    assert not any(is_free(f"aten::{name}") for name in ("add_", "copy_", "mm"))


def test_autograd_nodes_are_no_operators() -> None:
    assert is_operator("aten::add") and is_operator("torchvision::nms")
    assert not any(map(is_operator, ("AddmmBackward0", "autograd::engine::evaluate_function: X", "slipstream::own")))
