"""Windows of Swin transformers of other libraries, compared with what an output of their layers depends on."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer

from mereo.explain import attention_layers, attention_rollout, observe
from mereo.explain.shifted_windows import shifted_windows
from mereo.models.plain.own import as_vision_model

SIDE = 48


def of_torchvision() -> nn.Module:
    # Maps of 12 x 12 and 6 x 6 cells; windows of 5 x 5 need padding.
    return SwinTransformer([4, 4], 8, [2, 2], [1, 2], [5, 5], stochastic_depth_prob=0.0, num_classes=4)


def of_timm() -> nn.Module:
    sizes = {
        "img_size": SIDE,
        "patch_size": 4,
        "window_size": 3,
        "embed_dim": 8,
        "depths": (2, 2),
        "num_heads": (1, 2),
    }
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=4, **sizes)


def of_transformers() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"patch_size": 4, "window_size": 3, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "num_labels": 4}
    return transformers.SwinForImageClassification(transformers.SwinConfig(image_size=SIDE, **sizes))


def depends(block: nn.Module, given: tuple[Any, ...], receiver: int) -> Tensor:
    """The cells on which an output of a block depends: bool (cells,)."""
    x = given[0].clone().requires_grad_()
    out = block(x, *given[1:])
    out = (out[0] if isinstance(out, tuple) else out).reshape(len(x), -1, x.shape[-1])
    (gradient,) = torch.autograd.grad(out[0, receiver].square().sum(), [x])
    return gradient.reshape(len(x), -1, x.shape[-1])[0].abs().sum(1) > 1e-20


@pytest.mark.parametrize(
    ("make", "block"),
    [
        (of_torchvision, lambda network, stage, number: network.features[2 * stage + 1][number]),
        (of_timm, lambda network, stage, number: network.layers[stage].blocks[number]),
        (of_transformers, lambda network, stage, number: network.swin.encoder.layers[stage].blocks[number]),
    ],
)
def test_couplings_are_placed_where_the_output_depends_on_the_input(
    make: Callable[[], nn.Module], block: Callable[[nn.Module, int, int], nn.Module]
) -> None:
    torch.manual_seed(0)
    model = as_vision_model(make(), (SIDE, SIDE)).double().eval()
    images = torch.rand(2, 3, SIDE, SIDE, dtype=torch.float64)
    entered: list[tuple[Any, ...]] = []
    places = [(stage, number) for stage in range(2) for number in range(2)]
    for stage, number in places:
        block(model.network, stage, number).register_forward_pre_hook(lambda _, given: entered.append(given))
    observation = observe(model, images)
    layers = attention_layers(observation)
    assert [(layer.senders.rows, layer.senders.columns) for layer in layers] == [(12, 12)] * 2 + [(6, 6)] * 2
    for layer, given, place in zip(layers, list(entered), places, strict=True):
        for receiver in (0, 7, layer.num_receivers - 1):
            expected = depends(block(model.network, *place), given, receiver)
            couplings, reached = layer.rows(torch.full((layer.batch,), receiver))
            assert torch.equal(couplings[0].sum(0) > 1e-20, expected), (place, receiver)
            assert torch.equal(reached[0], expected)
    rollout = attention_rollout(observation)
    assert rollout is not None
    torch.testing.assert_close(rollout.cells.sum((1, 2)), torch.ones(2, dtype=torch.float64))


def test_windows_of_a_small_map_by_hand() -> None:
    cells = shifted_windows(3, 4, (2, 2), (1, 1))
    # Rolled: rows 1, 2, padding, 0 and columns 1, 2, 3, 0.
    assert cells.tolist() == [[5, 6, 9, 10], [7, 4, 11, 8], [-1, -1, 1, 2], [-1, -1, 3, 0]]


def test_images_that_windows_do_not_fit_are_not_placed() -> None:
    torch.manual_seed(0)
    model = as_vision_model(of_timm(), (SIDE, SIDE)).eval()
    observation = observe(model, torch.rand(1, 3, SIDE, SIDE))
    observation = type(observation)(**{**vars(observation), "image_shape": (3, SIDE, 2 * SIDE)})
    assert not attention_layers(observation) and attention_rollout(observation) is None
