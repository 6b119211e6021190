"""Heads of attention: pruned, alone, by the gradient; how far they look; which patterns they have."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.measure.attention_hops import (
    expected_hop,
    hop_profile,
    pair_counts,
    pair_hops,
    recorded_attention,
    token_traffic,
)
from mereo.measure.attention_patterns import (
    PatternAutoencoder,
    head_table,
    k_means,
    pattern_items,
    pattern_label,
    summarise,
)
from mereo.measure.head_importance import (
    METRICS,
    Outputs,
    effects,
    head_importance,
    head_layers,
    masked_heads,
    pruning_curve,
    suffix_outputs,
)
from mereo.models import VisionModel
from plain_cnn import PlainCNN

LAYERS, HEADS = 4, 4


@pytest.fixture(scope="module")
def vit() -> VisionModel:
    torch.manual_seed(0)
    sizes = {"img_size": (8, 12), "patch_size": 4, "embed_dim": 16, "depth": LAYERS, "num_heads": HEADS}
    model = mereo.create_model("vit_tiny", num_classes=3, in_chans=1, **sizes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.rand(n, 1, 8, 12).double(), torch.randint(3, (n,))) for n in (3, 2)]


def _prepared(model: VisionModel, images: Tensor) -> Tensor:
    mean, std = (images.new_tensor(model.pretrained_cfg[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    return (images - mean) / std


@torch.no_grad()
def _pruned(model: VisionModel, images: Tensor, layer: int, heads: list[int]) -> tuple[Tensor, Tensor]:
    """Scores and last class token with columns of W_O set to zero, by a full pass."""
    projection = model.get_submodule(f"blocks.{layer}.attn.proj")
    own = projection.weight.clone()
    for head in heads:
        projection.weight[:, head * 4 : head * 4 + 4] = 0
    try:
        features = model.forward_features(_prepared(model, images))
        return model(_prepared(model, images)), features[:, 0]
    finally:
        projection.weight.copy_(own)


def test_suffixes_equal_full_passes_and_the_metrics_their_formulas(
    vit: VisionModel, batches: list[tuple[Tensor, Tensor]]
) -> None:
    images, labels = batches[0]
    layers = head_layers(vit)
    assert [layer.name for layer in layers] == [f"blocks.{n}.attn" for n in range(LAYERS)]
    own = Outputs(*_pruned(vit, images, 0, []))
    expected = {name: torch.zeros(LAYERS, HEADS).double() for name in METRICS}
    alone = {name: torch.zeros(LAYERS, HEADS).double() for name in METRICS}
    for number, layer in enumerate(layers):
        with torch.no_grad():
            found = suffix_outputs(vit, _prepared(vit, images), layer, 1 - torch.eye(HEADS).double())
        for head in range(HEADS):
            full = Outputs(*_pruned(vit, images, number, [head]))
            torch.testing.assert_close(found[head], full, atol=1e-9, rtol=0)
            kept = Outputs(*_pruned(vit, images, number, [h for h in range(HEADS) if h != head]))
            for name in METRICS:
                expected[name][number, head] = effects(own, full, labels)[name].mean()
                alone[name][number, head] = -effects(own, kept, labels)[name].mean()
    one = [(images, labels)]
    for mode, wanted in (("leave_one_out", expected), ("keep_one", alone)):
        made = head_importance(vit, one, mode=mode)
        for name in METRICS:
            torch.testing.assert_close(made[name], wanted[name], atol=1e-9, rtol=0)
    full = Outputs(*_pruned(vit, images, 1, [2]))
    p, q = own.scores.softmax(1), full.scores.softmax(1)
    rows = torch.arange(3)
    torch.testing.assert_close(effects(own, full, labels)["probability_drop"], (p - q)[rows, labels])
    cross = F.cross_entropy(full.scores, labels, reduction="none") - F.cross_entropy(
        own.scores, labels, reduction="none"
    )
    torch.testing.assert_close(effects(own, full, labels)["loss_increase"], cross)


def test_the_divergence_of_the_page() -> None:
    scores = [
        Outputs(torch.tensor([row]).double().log(), torch.ones(1, 2)) for row in ((0.7, 0.2, 0.1), (0.5, 0.3, 0.2))
    ]
    found = effects(*scores, torch.tensor([0]))
    assert found["divergence"].item() == pytest.approx(0.021901, abs=1e-6)
    assert found["probability_drop"].item() == pytest.approx(0.2)
    far = [Outputs(torch.tensor([row]), torch.ones(1, 2)) for row in ((60.0, 0.0), (0.0, 60.0))]
    assert effects(*far, torch.tensor([0]))["divergence"].item() == pytest.approx(math.log(2), abs=1e-6)


def test_a_head_that_is_not_read_has_no_effect(vit: VisionModel, batches: list[tuple[Tensor, Tensor]]) -> None:
    projection = vit.get_submodule("blocks.2.attn.proj")
    own = projection.weight.detach().clone()
    with torch.no_grad():
        projection.weight[:, 4:8] = 0
        try:
            found = head_importance(vit, batches) | head_importance(vit, batches, mode="gradient")
        finally:
            projection.weight.copy_(own)
    assert set(found) == {*METRICS, "gradient"}
    for values in found.values():
        assert abs(float(values[2, 1])) < 1e-12 and bool((values != 0).sum() > 4)


def test_all_heads_pruned_leave_the_bias_of_the_projection(
    vit: VisionModel, batches: list[tuple[Tensor, Tensor]]
) -> None:
    images = _prepared(vit, batches[0][0])
    block = vit.get_submodule("blocks.1")
    with torch.no_grad(), masked_heads(vit, {"blocks.1.attn": torch.zeros(HEADS)}):
        found = vit.stage(1, vit.stage(0, images))
    with torch.no_grad():
        tokens = vit.stage(0, images) + block.attn.proj.bias
        torch.testing.assert_close(found, tokens + block.mlp(block.norm2(tokens)))
    everything = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    curve = pruning_curve(vit, batches, everything)
    none = torch.cat([vit(_prepared(vit, x)).argmax(1) == y for x, y in batches]).double().mean()
    assert len(curve) == 17 and curve[0] == pytest.approx(float(none))
    with masked_heads(vit, {layer.name: torch.zeros(HEADS) for layer in head_layers(vit)}):
        bare = torch.cat([vit(_prepared(vit, x)).argmax(1) == y for x, y in batches]).double().mean()
    assert curve[-1] == pytest.approx(float(bare))


def test_the_gradient_is_a_finite_difference(vit: VisionModel, batches: list[tuple[Tensor, Tensor]]) -> None:
    found = head_importance(vit, batches, mode="gradient")["gradient"]
    expected, step = torch.zeros(LAYERS, HEADS).double(), 1e-5
    for number, layer in enumerate(head_layers(vit)):
        for head in range(HEADS):
            for images, labels in batches:
                slopes = []
                for sign in (1, -1):
                    mask = torch.ones(HEADS).double()
                    mask[head] += sign * step
                    with torch.no_grad(), masked_heads(vit, {layer.name: mask}):
                        slopes.append(F.cross_entropy(vit(_prepared(vit, images)), labels, reduction="none"))
                expected[number, head] += ((slopes[0] - slopes[1]) / (2 * step)).abs().sum() / 5
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-7)


@pytest.mark.long
def test_a_foreign_transformer() -> None:
    model = mereo.create_model("timm:vit_tiny_patch16_224", img_size=32, num_classes=3).eval()
    images, labels = torch.rand(2, 3, 32, 32), torch.tensor([0, 2])
    layer = head_layers(model)[1]
    assert layer.heads == 3
    found = head_importance(model, [(images, labels)], ["loss_increase"])["loss_increase"]
    losses = [F.cross_entropy(model(_prepared(model, images)), labels)]
    with torch.no_grad():
        layer.projection.weight[:, 64:128] = 0
        losses.append(F.cross_entropy(model(_prepared(model, images)), labels))
    assert float(found[1, 1]) == pytest.approx((losses[1] - losses[0]).item(), abs=1e-5)


def test_hops_by_loops() -> None:
    for grid, counts in (((3, 3), [9, 40, 32]), ((5, 4), None)):
        hops, cells = pair_hops(grid), [(r, c) for r in range(grid[0]) for c in range(grid[1])]
        for i, (r, c) in enumerate(cells):
            for j, (s, d) in enumerate(cells):
                assert hops[i, j] == max(abs(r - s), abs(c - d))
        assert pair_counts(grid).sum() == (grid[0] * grid[1]) ** 2
        assert counts is None or pair_counts(grid).tolist() == counts
    wide = [196, 1404, 2496, 3300, 3840, 4140, 4224, 4116, 3840, 3420, 2880, 2244, 1536, 780]
    assert pair_counts((14, 14)).tolist() == wide


def test_the_profiles_of_the_page_and_by_loops() -> None:
    uniform, identity = torch.full((1, 1, 9, 9), 1 / 9), torch.eye(9)[None, None]
    found = hop_profile([uniform, identity], (3, 3), prefix=0)
    torch.testing.assert_close(found[0, 0], torch.tensor([9, 40, 32]).double() / 81, atol=1e-6, rtol=0)
    assert found[1, 0].tolist() == [1, 0, 0] and expected_hop(found)[1, 0] == 0
    torch.manual_seed(0)
    attention = torch.randn(2, 3, 7, 7).double().softmax(-1)
    patches, hops = attention[..., 1:, 1:], pair_hops((2, 3))
    mass, mean = (hop_profile([attention], (2, 3), kind)[0] for kind in ("mass", "mean"))
    for head in range(3):
        for k in range(3):
            sums = [[a[head, i][hops[i] == k].sum() for i in range(6)] for a in patches]
            near = [(hops[i] == k).sum() for i in range(6)]
            torch.testing.assert_close(mass[head, k], torch.tensor(sums).double().mean())
            parts = [each[i] / near[i] for each in sums for i in range(6) if near[i]]
            torch.testing.assert_close(mean[head, k], torch.stack(parts).mean())
    torch.testing.assert_close(mass.sum(1), patches.sum(-1).mean((0, 2)))
    torch.testing.assert_close(hop_profile([attention], (2, 3), renormalise=True).sum(2), torch.ones(1, 3).double())
    flipped = torch.tensor([0, 3, 2, 1, 6, 5, 4])  # left and right
    torch.testing.assert_close(hop_profile([attention[:, :, flipped][..., flipped]], (2, 3))[0], mass)
    traffic = token_traffic([attention], (2, 3))
    torch.testing.assert_close(traffic.token_to_patches + traffic.token_to_token, torch.ones(1, 3).double())
    torch.testing.assert_close(traffic.patch_to_token[0] + mass.sum(1), torch.ones(3).double())


def test_recorded_attention_and_the_table(vit: VisionModel, batches: list[tuple[Tensor, Tensor]]) -> None:
    found = recorded_attention(vit, _prepared(vit, batches[0][0]))
    assert found.grid == (2, 3) and found.prefix == 1 and len(found.maps) == LAYERS
    rows = head_table(found.maps, found.grid, head_importance(vit, batches, ["divergence"]))
    assert len(rows) == 16 and sorted(row["divergence"] for row in rows) == list(range(1, 17))
    with pytest.raises(UsageError) as refused:
        recorded_attention(mereo.create_model("davit_tiny", img_size=32, num_classes=3), torch.rand(1, 3, 32, 32))
    assert "stages" in str(refused.value)


def test_patterns_and_their_names() -> None:
    assert sum(parameter.numel() for parameter in PatternAutoencoder().parameters()) == 330_833
    assert PatternAutoencoder(16, 3)(torch.rand(2, 1, 16, 16)).shape == (2, 1, 16, 16)
    grid, cells = (4, 4), 16
    near = (pair_hops(grid) <= 1).double()
    stripe = torch.full((cells, cells), 0.01).double()
    stripe[:, [3, 12]] = 1
    torch.manual_seed(0)
    maps = {
        "diagonal": torch.eye(cells).double() + 0.01, "local": near, "vertical stripes": stripe,
        "uniform": torch.ones(cells, cells).double(), "mixed": torch.randn(cells, cells).double().mul(2).exp(),
    }  # fmt: skip
    for name, each in maps.items():
        assert pattern_label(each / each.sum(1, keepdim=True), grid, prefix=0) == name
    attention = [torch.stack([maps["diagonal"], maps["vertical stripes"]]).expand(6, 2, cells, cells)]
    items, index = pattern_items(attention, prefix=0, size=8)
    torch.testing.assert_close(
        items[1, 0], F.adaptive_avg_pool2d(stripe.float()[None, None], 8)[0, 0] / items[1].new_tensor(0.505)
    )
    assert items.amax((1, 2, 3)).tolist() == [1.0] * 12 and index[3].tolist() == [1, 0, 1]
    found = summarise(attention, prefix=0, k=2, size=8, latent=4, epochs=30)
    assert found.losses[-1] < found.losses[0] and found.coordinates.shape == (12, 2)
    assert found.clusters[::2].unique().numel() == found.clusters[1::2].unique().numel() == 1
    assert found.clusters[0] != found.clusters[1]
    for cluster in (0, 1):
        members = (found.clusters == cluster).nonzero()[:, 0].tolist()
        assert set(found.central[cluster]) <= set(members)
        torch.testing.assert_close(found.prototypes[cluster], items[members[0], 0])
    centres, labels = k_means(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), 2)
    assert sorted(centres[:, 0].tolist()) == [0.5, 10.5] and labels[0] == labels[1] != labels[2]


def test_refusals_leave_the_model_as_it_was(vit: VisionModel, batches: list[tuple[Tensor, Tensor]]) -> None:
    attention = [torch.full((1, 2, 5, 5), 0.2)]
    refused = (
        (lambda: head_importance(PlainCNN(), [(torch.rand(1, 3, 16, 16), torch.zeros(1).long())]), "PlainCNN"),
        (lambda: head_importance(vit, batches, ["divergance"]), "divergance"),
        (lambda: head_importance(vit, batches, mode="leave_two_out"), "leave_two_out"),
        (lambda: head_importance(vit, []), "batches"),
        (lambda: head_importance(vit, [(batches[0][0], torch.tensor([0, 1, 3]))]), "3"),
        (lambda: head_importance(mereo.create_model("vit_tiny", img_size=32).half(), batches), "float16"),
        (lambda: pruning_curve(vit, batches, [(0, 4)]), "(0, 4)"),
        (lambda: masked_heads(vit, {"blocks.9.attn": torch.ones(4)}).__enter__(), "blocks.9.attn"),
        (lambda: masked_heads(vit, {"blocks.0.attn": torch.ones(3)}).__enter__(), "(3,)"),
        (lambda: hop_profile(attention, (3, 3)), "attention"),
        (lambda: hop_profile(attention, (2, 2), "sum"), "sum"),
        (lambda: PatternAutoencoder(20), "20"),
        (lambda: k_means(torch.ones(2, 2), 3), "3"),
    )
    for call, word in refused:
        with pytest.raises(UsageError) as error:
            call()
        assert word in str(error.value) and "\n" not in str(error.value)
    assert not any(isinstance(m, nn.Module) and (m._forward_pre_hooks or m._forward_hooks) for m in vit.modules())
