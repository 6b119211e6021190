"""SpectFormer, vanilla: its two kinds of blocks against their equations, and the authors' names."""

from typing import Any

import pytest
import torch

import mereo
from mereo.core import Coupling
from mereo.errors import UsageError
from mereo.mechanisms.mixer import SpectralGating
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.vision.spectformer import AttentionBlock, SpectFormer, SpectralBlock

TINY: dict[str, Any] = {
    "img_size": 16, "num_classes": 5, "patch_size": 4, "dim": 12, "depth": 4, "num_heads": 2, "spectral_layers": 2,
}  # fmt: skip


def tiny(**changes: Any) -> SpectFormer:
    model = mereo.create_model("spectformer_tiny", **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert isinstance(model, SpectFormer)
    return model.eval()


def test_a_spectral_block_has_one_residual() -> None:
    block = SpectralBlock(4, (3, 2), 8, 0.0).double()
    maps = torch.randn(2, 4, 3, 2, dtype=torch.float64)
    x = maps.flatten(2).mT
    spectrum = torch.fft.rfft2(block.norm1(x).unflatten(1, (3, 2)), dim=(1, 2)) * torch.view_as_complex(
        block.gating.filter
    )
    mixed = torch.fft.irfft2(spectrum, s=(3, 2), dim=(1, 2)).flatten(1, 2)
    hidden = torch.nn.functional.gelu(block.feed_forward.first(block.norm2(mixed)))
    torch.testing.assert_close(block(maps).flatten(2).mT, x + block.feed_forward.second(hidden))


def test_an_attention_block_is_that_of_pytorch() -> None:
    block = AttentionBlock(6, 2, 18, 0.0).eval()
    theirs = torch.nn.TransformerEncoderLayer(
        6, 2, 18, 0.0, torch.nn.functional.gelu, 1e-6, batch_first=True, norm_first=True
    ).eval()
    names = {
        "attention.qkv.weight": "self_attn.in_proj_weight", "attention.qkv.bias": "self_attn.in_proj_bias",
        "attention.proj.weight": "self_attn.out_proj.weight", "attention.proj.bias": "self_attn.out_proj.bias",
    }  # fmt: skip
    for ours, name in (("feed_forward.first", "linear1"), ("feed_forward.second", "linear2"),
                       ("norm1", "norm1"), ("norm2", "norm2")):  # fmt: skip
        names |= {f"{ours}.{kind}": f"{name}.{kind}" for kind in ("weight", "bias")}
    state = theirs.state_dict()
    block.load_state_dict({ours: state[name] for ours, name in names.items()})
    maps = torch.randn(2, 6, 3, 4)
    expected = theirs(maps.flatten(2).mT)
    torch.testing.assert_close(block(maps).flatten(2).mT, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alpha", [0, 2, 4])
@pytest.mark.parametrize("first", [True, False])
def test_alpha_counts_spectral_blocks(alpha: int, first: bool) -> None:
    model = tiny(spectral_layers=alpha, spectral_first=first)
    kinds = [isinstance(block, SpectralBlock) for block in model.stages]
    assert kinds == sorted(kinds, reverse=first) and sum(kinds) == alpha
    modules = list(model.modules())
    assert sum(isinstance(m, SpectralGating) for m in modules) == alpha
    assert sum(isinstance(m, Coupling) for m in modules) == 4 - alpha


def test_images_of_another_size_resize_positions_and_filters() -> None:
    model = tiny()
    assert model(torch.rand(2, 3, 16, 24)).shape == (2, 5)
    with pytest.raises(UsageError, match="sides of at least 4"):
        model(torch.rand(1, 3, 3, 16))


def test_maps_with_the_last_norm() -> None:
    model, images = tiny(), torch.rand(2, 3, 16, 16)
    tokens, (last,) = model.forward_intermediates(images, [3], norm=True)
    torch.testing.assert_close(last.flatten(2).mT, tokens)


def test_the_names_of_the_authors() -> None:
    model = tiny()
    (layout,) = [each for each in LAYOUTS if each.module is SpectFormer]
    tensors = to_layout(model, layout)
    assert {"patch_embed.proj.bias", "pos_embed", "blocks.0.filter.complex_weight", "blocks.3.attn.qkv.bias"} <= set(
        tensors
    )
    again = mereo.convert(tensors, model="spectformer_tiny", **TINY)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spectral_layers": 5}, "between 0 and depth"),
        ({"num_heads": 5}, "a multiple of num_heads"),
        ({"ratio": 0.01}, r"ratio is 0\.01 with dim 12"),
        ({"img_size": 3}, "no patch of 4 x 4 fits"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(**changes)
