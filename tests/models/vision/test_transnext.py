"""TransNeXt and MoH-ViT by their equations under the authors' names, published shares of heads, and sizes."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.core import added_losses
from mereo.errors import UsageError
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.registry import outline
from mereo.models.vision.transnext import MIXTURE, TINY, TransNeXt

Weights = dict[str, Tensor]


def tiny(**changes: Any) -> TransNeXt:
    torch.manual_seed(0)
    model: TransNeXt = mereo.create_model("transnext_small", **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.double().eval()


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def norm(x: Tensor, w: Weights, name: str, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def position(w: Weights, offsets: list[float]) -> Tensor:
    """The biases (heads,) of a pair of cells, from its distance down and across over the sides of the map."""
    logs = [math.copysign(math.log2(abs(8 * o) + 1) / 3, o) for o in offsets]
    hidden = linear(torch.tensor(logs, dtype=torch.float64), w, "cpb_fc1").relu()
    return linear(hidden, w, "cpb_fc2")


def gates(x: Tensor, w: Weights, heads: int, shared: int, active: int) -> Tensor:
    first = F.softmax(w["wg_1.weight"] @ x, 0) * shared if shared > 1 else torch.ones(shared, dtype=x.dtype)
    shares = F.softmax(w["wg.weight"] @ x, 0)
    best = shares.argsort(descending=True)[:active]
    second = torch.zeros(heads - shared, dtype=x.dtype)
    second[best] = active * shares[best] / shares[best].sum()
    both = 2 * F.softmax(w["wg_0.weight"] @ x, 0)
    return torch.cat((both[0] * first, both[1] * second))


def attention(cells: Tensor, w: Weights, heads: int, pool: int, mixture: tuple[int, int] | None) -> Tensor:
    """One cell after the other: cells (side, side, dim) -> the same."""
    side, dim = cells.shape[0], cells.shape[-1]
    d, out = dim // heads, torch.zeros_like(cells)
    weight, bias = (w[f"{'q' if pool > 1 else 'qkv'}.{kind}"] for kind in ("weight", "bias"))
    q = F.normalize(F.linear(cells, weight[:dim], bias[:dim]).unflatten(-1, (heads, d)), dim=-1)
    kv = linear(cells, w, "kv") if pool > 1 else F.linear(cells, weight[dim:], bias[dim:])
    far, centres = kv, [[(i, j) for j in range(side)] for i in range(side)]
    if pool > 1:
        small = F.gelu(F.conv2d(cells.permute(2, 0, 1)[None], w["sr.weight"], w["sr.bias"]))
        small = F.avg_pool2d(small, pool)[0].permute(1, 2, 0)
        far = linear(norm(small, w, "norm", 1e-5), w, "kv")
        at = [pool * i + (pool - 1) / 2 for i in range(side // pool)]
        centres = [[(i, j) for j in at] for i in at]
    for i in range(side):
        for j in range(side):
            scores, values, window = [], [], []
            for a in range(i - 1, i + 2) if pool > 1 else ():
                for b in range(j - 1, j + 2):
                    if 0 <= a < side and 0 <= b < side:
                        key, value = kv[a, b].unflatten(0, (2, heads, d))
                        place = 3 * (a - i + 1) + b - j + 1
                        scores.append((key, w["relative_pos_bias_local"][:, place]))
                        values.append(value)
                        window.append(place)
            for a, row in enumerate(centres):
                for b, (y, x) in enumerate(row):
                    key, value = far[a, b].unflatten(0, (2, heads, d))
                    scores.append((key, position(w, [(i - y) / (side - 1), (j - x) / (side - 1)])))
                    values.append(value)
            query = (q[i, j] + w["query_embedding"][:, 0]) * F.softplus(w["temperature"][:, 0]) * math.log(len(scores))
            shares = torch.stack([(query * F.normalize(k, dim=-1)).sum(-1) + b for k, b in scores]).softmax(0)
            for slot, place in enumerate(window):
                shares[slot] += (q[i, j] * w["learnable_tokens"][:, :, place]).sum(-1) + w["learnable_bias"][
                    :, 0, place
                ]
            mixed = (shares.unsqueeze(-1) * torch.stack(values)).sum(0)
            if mixture is not None:
                mixed = mixed * gates(cells[i, j], w, heads, *mixture).unsqueeze(-1)
            out[i, j] = linear(mixed.flatten(), w, "proj")
    return out


def reference(w: Weights, image: Tensor, mixture: bool) -> Tensor:
    x = image
    for i, heads in enumerate(TINY["num_heads"]):
        name = f"patch_embed{i + 1}"
        maps = F.conv2d(
            x[None], w[f"{name}.proj.weight"], w[f"{name}.proj.bias"], stride=2 if i else 4, padding=1 if i else 3
        )
        x = norm(maps[0].permute(1, 2, 0), w, f"{name}.norm", 1e-5)
        here = f"block{i + 1}.0."
        own = {n.removeprefix(f"{here}attn."): t for n, t in w.items() if n.startswith(here)}
        chosen = (MIXTURE["shared"][i], MIXTURE["active"][i]) if mixture else None
        x = x + attention(norm(x, w, f"{here}norm1", 1e-6), own, heads, TINY["pools"][i], chosen)
        gate, value = linear(norm(x, w, f"{here}norm2", 1e-6), w, f"{here}mlp.fc1").chunk(2, -1)
        conv = w[f"{here}mlp.dwconv.dwconv.weight"]
        gate = F.conv2d(
            gate.permute(2, 0, 1)[None], conv, w[f"{here}mlp.dwconv.dwconv.bias"], padding=1, groups=len(conv)
        )
        x = x + linear(F.gelu(gate[0].permute(1, 2, 0)) * value, w, f"{here}mlp.fc2")
        x = norm(x, w, f"norm{i + 1}", 1e-6).permute(2, 0, 1)
    return linear(x.mean((1, 2)), w, "head")


@pytest.mark.parametrize("mixture", [False, True])
def test_scores_are_those_of_the_equations_under_the_names_of_the_authors(mixture: bool) -> None:
    model = tiny(num_classes=5, img_size=16, **(MIXTURE if mixture else {}))
    (layout,) = (layout for layout in LAYOUTS if layout.module is TransNeXt)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([reference(to_layout(model, layout), image, mixture) for image in images])
        torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize(("name", "share"), [("s_80", 0.7995), ("s_75", 0.753), ("b_75", 0.75), ("b_50", 0.5)])
def test_published_shares_of_heads(name: str, share: float) -> None:
    model = outline(f"moh_vit_{name}")
    routers = [block.attention.router for stage in model.stages for block in stage.blocks]
    acting, heads = (sum(x) for x in zip(*((r.shared + r.active, r.num_heads) for r in routers), strict=True))
    assert acting / heads == pytest.approx(share, abs=1e-3)


def test_couplings_are_over_the_window_and_the_pooled_map() -> None:
    model = tiny(**MIXTURE)
    with mereo.record(model) as trace:
        model(torch.rand(2, 3, 16, 16, dtype=torch.float64))
    couplings = trace["stages.0.blocks.0.attention.coupling"]
    assert couplings.shape == (2, 4, 16, 16 + 4)
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 4, 16, dtype=torch.float64))
    near = couplings[0, 0, :, :16] > 0
    assert near.sum(1).view(4, 4).tolist() == [[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]]
    assert trace["stages.1.blocks.0.attention.coupling"].shape == (2, 4, 4, 4)
    assert trace["stages.1.blocks.0.attention.router.gates"].shape == (2, 4, 4)


def test_images_of_other_sizes() -> None:
    model = tiny()
    assert model.size_step == (8, 8) and model(torch.rand(1, 3, 24, 8, dtype=torch.float64)).isfinite().all()
    with pytest.raises(UsageError, match="multiples of 8"):
        model(torch.rand(1, 3, 20, 16, dtype=torch.float64))


def test_training_notes_the_balance_of_the_heads() -> None:
    model = tiny(**MIXTURE).train()
    model(torch.rand(2, 3, 16, 16, dtype=torch.float64))
    assert added_losses(model)["balance"] > 0


def test_wrong_arguments() -> None:
    for changes, message in (
        ({"shared": (1,)}, "shared and active"),
        ({"shared": (5, 2), "active": (1, 1)}, "shared is 5"),
        ({"pools": (0, 1)}, "pools is 0"),
        ({"img_size": 20}, "img_size is 20"),
        ({"num_heads": (3, 4)}, "num_heads 3"),
    ):
        with pytest.raises(UsageError, match=message):
            tiny(**changes)
