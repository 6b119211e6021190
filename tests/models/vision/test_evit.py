"""EViT: DeiT's weights fit, tokens and multiplications are those published, kept patches are recorded."""

from typing import Any

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.inference.flops import count_flops
from mereo.mechanisms.select import kept_patches
from mereo.models.registry import outline
from mereo.models.vision.evit import TINY, EViT
from mereo.surgery import set_keep_rate


def tiny(**changes: Any) -> EViT:
    torch.manual_seed(0)
    model: EViT = mereo.create_model("evit_deit_small", **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def test_with_all_patches_kept_it_is_the_plain_transformer_bit_for_bit() -> None:
    model, images = tiny(keep_rates=(1.0, 1.0)), torch.rand(2, 3, 16, 16)
    names = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes")
    plain = mereo.create_model("deit_small", **{name: TINY[name] for name in names}).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(images), plain(images))
    fewer = tiny()
    fewer.load_state_dict(plain.state_dict())
    changed = mereo.evit(plain, TINY["keep_rates"], layers=TINY["reducing_layers"])
    assert torch.equal(fewer(images), changed(images)) and not torch.equal(fewer(images), plain(images))


def test_weights_of_deits_authors_fit() -> None:
    timm = pytest.importorskip("timm")
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 10}
    source = timm.create_model("deit_small_patch16_224", **small).eval()
    model = mereo.convert(source.state_dict(), model="evit_deit_small", **{**TINY, "keep_rates": (1.0, 1.0)})
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(model(images), source(images), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "rate", "fuse", "expected"),
    [
        ("evit_deit_small", 0.9, True, 4.022), ("evit_deit_small", 0.8, True, 3.477),
        ("evit_deit_small", 0.7, True, 3.029), ("evit_deit_small", 0.6, True, 2.635),
        ("evit_deit_small", 0.5, True, 2.309), ("evit_deit_small", 0.7, False, 2.997),
        ("evit_deit_small", 0.5, False, 2.282),
    ],
)  # fmt: skip
def test_multiplications(name: str, rate: float, fuse: bool, expected: float) -> None:
    with torch.device("meta"):
        model = mereo.models.registry.build(name, keep_rates=(rate,) * 3, fuse=fuse)
        multiplications = count_flops(model, torch.zeros(1, 3, 224, 224)) / 2e9
    assert multiplications == pytest.approx(expected, abs=0.005)


def test_larger_images_with_fewer_patches_cost_about_the_same() -> None:
    costs = [outline(f"evit_deit_small_{side}") for side in (272, 288, 304)]
    multiplications = [count_flops(m, torch.zeros(1, *m.image_shape, device="meta")) / 2e9 for m in costs]
    assert max(multiplications) / min(multiplications) < 1.05


def test_kept_patches_are_recorded_with_their_places() -> None:
    model = tiny()
    with mereo.record(model) as trace:
        features = model.forward_features(torch.rand(2, 3, 16, 16))
    kept = [trace[f"blocks.{layer}.kept"] for layer in (1, 2)]
    assert [k.shape for k in kept] == [(2, 12), (2, 7)] and features.shape == (2, 1 + 7 + 1, 12)
    first, last = kept_patches(kept)
    assert all(set(row.tolist()) - {-1} <= set(before.tolist()) for row, before in zip(last, first, strict=True))
    couplings = trace["blocks.1.attn.coupling"]
    assert couplings.shape == (2, 3, 17, 17), "attention runs before patches leave"
    order = couplings[:, :, 0, 1:].mean(1).argsort(descending=True, stable=True)[:, :12]
    assert torch.equal(order, kept[0])
    (call,) = trace.calls("blocks.1.attn.coupling")
    assert call.senders is not None and call.senders.prefix == 1
    (call,) = trace.calls("blocks.2.attn.coupling")
    assert call.senders is None, "tokens of later blocks have no place that all images share"
    set_keep_rate(model, 0.5)
    assert model.forward_features(torch.rand(2, 3, 16, 16)).shape == (2, 1 + 5 + 1, 12)


def test_order_of_patches_does_not_matter_where_positions_go_along() -> None:
    model, images = tiny().double(), torch.rand(1, 3, 16, 16, dtype=torch.float64)
    tokens, order = model.embed(images), torch.randperm(16)
    moved = torch.cat((tokens[:, :1], tokens[:, 1:][:, order]), 1)
    scores = [model.forward_head(model.neck([model.blocks[0](each)])) for each in (tokens, moved)]
    torch.testing.assert_close(*scores)


def test_wrong_arguments() -> None:
    for changes, message in (
        ({"keep_rates": (0.0, 0.5)}, "above 0 and at most 1"),
        ({"keep_rates": (0.5,)}, "one value, or one for each layer"),
        ({"keep_rates": ("many", 0.5)}, "a rate for each"),
        ({"reducing_layers": (0, 1)}, "numbers of blocks from 1"),
        ({"reducing_layers": (1, 9)}, "layers is"),
        ({"reducing_layers": ()}, "layers is"),
        ({"keep_tokens": (0, 1)}, "at least 1 patch"),
    ):
        with pytest.raises(UsageError, match=message):
            tiny(**changes)
