"""NAT against its equations under the authors' names, its published costs, and images of any size."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.core import Neighborhood
from mereo.errors import UsageError
from mereo.models import get_model_entry
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.registry import outline
from mereo.models.vision.nat import NAT, PRESETS, TINY


def tiny(**changes: Any) -> NAT:
    model: NAT = mereo.create_model("nat_mini", **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()


def attended(x: Tensor, w: dict[str, Tensor], heads: int, window: int, dilation: int) -> Tensor:
    """Neighbourhood attention of cells (rows, columns, dim), one query after the other."""
    rows, columns, dim = x.shape
    q, k, v = (x.flatten(0, 1) @ w["attn.qkv.weight"].T + w["attn.qkv.bias"]).view(-1, 3, heads, dim // heads).unbind(1)
    keys, out = Neighborhood((rows, columns), window, dilation=dilation).keys(), torch.zeros_like(v)
    for i in range(rows * columns):
        for h in range(heads):
            scores = torch.stack([
                q[i, h] @ k[j, h] * (dim // heads) ** -0.5
                + w["attn.rpb"][
                    h,
                    (j // columns - i // columns) // dilation + window - 1,
                    (j % columns - i % columns) // dilation + window - 1,
                ]
                for j in keys[i].tolist()
            ])  # fmt: skip
            out[i, h] = scores.softmax(0) @ v[keys[i], h]
    return (out.flatten(1) @ w["attn.proj.weight"].T + w["attn.proj.bias"]).view(x.shape)


def reference(w: dict[str, Tensor], image: Tensor) -> Tensor:
    """Scores (classes,) of an image (channels, height, width), from tensors under the authors' names."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    for i in (0, 1):
        name = f"patch_embed.proj.{i}"
        image = F.conv2d(image[None], w[f"{name}.weight"], w[f"{name}.bias"], stride=2, padding=1)[0]
    x = norm(image.permute(1, 2, 0), "patch_embed.norm")
    for i, heads in enumerate(TINY["num_heads"]):
        for j in range(TINY["depths"][i]):
            here = f"levels.{i}.blocks.{j}."
            part = {name.removeprefix(here): tensor for name, tensor in w.items() if name.startswith(here)}
            dilation = TINY["dilations"][i] if j % 2 else 1
            x = x + part["gamma1"] * attended(norm(x, f"{here}norm1"), part, heads, TINY["window_size"], dilation)
            hidden = F.gelu(norm(x, f"{here}norm2") @ part["mlp.fc1.weight"].T + part["mlp.fc1.bias"])
            x = x + part["gamma2"] * (hidden @ part["mlp.fc2.weight"].T + part["mlp.fc2.bias"])
        if (down := f"levels.{i}.downsample") + ".reduction.weight" in w:
            x = F.conv2d(x.permute(2, 0, 1)[None], w[f"{down}.reduction.weight"], stride=2, padding=1)[0]
            x = norm(x.permute(1, 2, 0), f"{down}.norm")
    return norm(x, "norm").mean((0, 1)) @ w["head.weight"].T + w["head.bias"]


def official(model: NAT) -> dict[str, Tensor]:
    (layout,) = (layout for layout in LAYOUTS if layout.module is NAT)
    return to_layout(model, layout)


def test_scores_are_those_of_the_equations_under_the_names_of_the_authors() -> None:
    model = tiny(num_classes=5)
    images = torch.randn(2, 3, 28, 25, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([reference(official(model), image) for image in images])
        torch.testing.assert_close(model(images), expected)
        torch.testing.assert_close(model.fuse()(images), expected)
    again = mereo.convert(official(model), model="nat_mini", **{**TINY, "num_classes": 5})
    torch.testing.assert_close(again.double()(images), model(images))


def cost(name: str) -> float:
    """Multiply-adds of one image of 224 x 224: convolutions, linear layers, and scores with their sums."""
    given: dict[str, Any] = {**get_model_entry(name).defaults, **PRESETS[name][2]}
    dim, window, total = given["embed_dim"], given["window_size"], 0.0
    total += 112**2 * 27 * dim / 2 + 56**2 * 9 * dim / 2 * dim
    for i, depth in enumerate(given["depths"]):
        cells, width = (56 // 2**i) ** 2, dim * 2**i
        total += depth * cells * width * ((4 + 2 * given["mlp_ratio"]) * width + 2 * window**2)
        total += cells * 9 * width / 2 * width if i else 0
    return (total + 1000 * width) / 1e9


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset[1] is not None])
def test_presets_cost_what_is_published(name: str) -> None:
    published = PRESETS[name][1]
    assert published is not None and cost(name) == pytest.approx(published, abs=0.07)


def test_every_second_block_has_gaps() -> None:
    model = outline("dinat_tiny")
    for stage, most in zip(model.stages, (8, 4, 2, 1), strict=True):
        dilations = [block.attention.branch.dilation for block in stage.blocks]
        assert dilations == [(most, most) if j % 2 else (1, 1) for j in range(len(dilations))]


def test_windows_larger_than_a_map_are_clipped_and_attend_to_all_of_it() -> None:
    model = tiny(window_size=5, dilations=(2, 1))
    images = torch.randn(2, 3, 28, 20, dtype=torch.float64)
    with mereo.record(model) as trace:
        assert model(images).isfinite().all()
    last = trace["stages.1.blocks.1.attention.branch.coupling"]
    last = last.to_dense() if last.is_sparse else last
    assert last.shape == (2, 2, 4 * 3, 4 * 3) and (last > 0).all()
    first = trace["stages.0.blocks.0.attention.branch.coupling"]
    first = first.to_dense() if first.is_sparse else first
    assert ((first > 0).sum(-1) == 25).all()
    (call,) = trace.calls("stages.0.blocks.0.attention.branch.coupling")
    assert call.senders is not None and call.senders[:2] == (7, 5)


@pytest.mark.parametrize("side", [1, 8])
def test_images_whose_last_map_has_one_cell_are_refused(side: int) -> None:
    with pytest.raises(UsageError, match=r"at least 9"):
        tiny()(torch.rand(1, 3, 28, side, dtype=torch.float64))
    with pytest.raises(UsageError, match=r"img_size is \(8, 8\).*stem_stride"):
        tiny(img_size=8)
    assert tiny(img_size=8, stem_stride=1)(torch.rand(1, 3, 8, 8, dtype=torch.float64)).isfinite().all()


def test_wrong_arguments() -> None:
    for changes, message in (
        ({"depths": (2,)}, "depths"),
        ({"stem_stride": 3}, "stem_stride is 3"),
        ({"embed_dim": 9}, "embed_dim is 9"),
        ({"window_size": 1}, "window is 1"),
        ({"num_heads": (3, 2)}, "num_heads 3"),
    ):
        with pytest.raises(UsageError, match=message):
            tiny(**changes)
