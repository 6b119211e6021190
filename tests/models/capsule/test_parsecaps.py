"""ParseCaps: counts, shapes of the stages, concepts, independence of the batch, stochastic depth, explanations."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo import create_model, record
from mereo.core import Capsules, Coupling
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.explain import explain, observe, parse_trees
from mereo.layers.capsules.attending import CapsuleStage
from mereo.models import ParseCaps
from mereo.models.capsule.parsecaps import PrimaryStage, correlation_penalty
from mereo.models.registry import get_model_entry, outline
from mereo.tasks.classification import ClassificationObjective

SMALL: dict[str, Any] = {"stem": (4, 4, 6), "dims": (4, 4, 6, 8), "depths": (1, 1, 2), "num_classes": 3}


def count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


def some(**arguments: Any) -> ParseCaps:
    torch.manual_seed(0)
    model: Any = create_model("parsecaps", **{**SMALL, "img_size": 64, **arguments})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model(torch.randn(6, *model.image_shape))
    return model.eval()


def test_counts() -> None:
    grey = outline("parsecaps", img_size=64, in_chans=1, num_classes=3)
    assert count(grey) == 494_893
    assert [count(stage) for stage in grey.stages] == [102_872, 3_936, 46_410, 304_030]
    assert [count(grey.head), count(grey.concepts)] == [36_995, 650]
    assert count(outline("parsecaps")) == 496_460
    assert count(outline("parsecaps_224", num_classes=2)) == 501_524
    # The authors' class has a norm over (16, 36, 64) besides, which nothing uses.
    assert [count(outline("parsecaps")) + 2 * 16 * 36 * 64, count(grey) + 2 * 16 * 36 * 64] == [570_188, 568_621]


def test_starts() -> None:
    torch.manual_seed(0)
    model = create_model("parsecaps")
    linears = [m for stage in model.stages[2:] for m in stage.modules() if isinstance(m, nn.Linear)]
    assert len(linears) == (2 + 5) * 6
    for linear in linears:
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.06) and not linear.bias.any()
    with torch.no_grad():
        for layer in (model.head.routing.first, model.head.routing.second):
            layer.weight.zero_()
            layer.bias.zero_()
        # GELU(sigmoid(0)) = 0.345731 in each of the 64 numbers, of which the largest is GELU(1).
        lengths = model.eval()(torch.rand(2, 3, 32, 32))
        torch.testing.assert_close(lengths, torch.full((2, 10), 8 * 0.345731), rtol=0, atol=1e-5)
        model.head.routing.second.bias.fill_(50)
        torch.testing.assert_close(model(torch.rand(1, 3, 32, 32)), torch.full((1, 10), 8 * 0.841345))


def test_decoder_of_the_authors_code() -> None:
    decoder = outline("parsecaps", decoder=True).decoder
    assert decoder.start == (16, 8, 8) and decoder.project.in_features == 64
    made = [(layer.out_channels, layer.kernel_size[0], layer.stride[0]) for layer in decoder.layers]
    assert made == [(64, 3, 1), (32, 3, 2), (16, 3, 2), (3, 3, 1)]


@torch.no_grad()
def test_stages_halve_the_grid_and_widen_the_capsules() -> None:
    model = create_model("parsecaps").eval()
    maps = model.forward_intermediates(torch.rand(1, 3, 32, 32), intermediates_only=True)
    assert [tuple(x.shape[1:]) for x in maps] == [(8, 16, 16), (16, 8, 8), (36, 4, 4), (64, 2, 2)]
    for routing in ("conv", "axial"):
        stage = CapsuleStage(5, 7, 2, routing=routing)
        assert stage(torch.rand(2, 5, 9, 4)).shape == (2, 7, 5, 2)


@torch.no_grad()
@pytest.mark.parametrize("routing", ["conv", "axial"])
def test_a_stage_equals_the_equations(routing: str) -> None:
    stage = CapsuleStage(5, 6, 2, 2, routing=routing).double().eval()
    maps = torch.randn(3, 5, 6, 7, dtype=torch.float64)
    first, norm, _, second, other, _, last = stage.parse
    x = F.conv2d(maps, first.weight, first.bias, 2, 1)
    x = F.conv2d(norm(x).relu(), second.weight, second.bias, 1, 1)
    x = other(x).relu().permute(0, 2, 3, 1)
    x = F.layer_norm(x, (6,), last.weight, last.bias)
    for cell in stage.cells:
        x = x + cell.route(cell.norm(x))
        y = F.gelu(F.layer_norm(x, (6,)) @ cell.mix.first.weight.T + cell.mix.first.bias)
        x = x + y @ cell.mix.second.weight.T + cell.mix.second.bias
    torch.testing.assert_close(stage(maps), x.permute(0, 3, 1, 2))


@torch.no_grad()
def test_stem_and_primary_capsules_equal_the_equations() -> None:
    model = some(img_size=(20, 18)).double()
    images = maps = torch.randn(2, 3, 20, 18, dtype=torch.float64)
    for i, (kernel, stride) in enumerate(((5, 1), (3, 1), (3, 1), (3, 2))):
        conv, norm = model.stages[0][3 * i : 3 * i + 2]
        maps = F.conv2d(maps, conv.weight, conv.bias, stride, kernel // 2)
        maps = F.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias).relu()
    depthwise, _, pointwise = model.stages[1].make
    maps = F.conv2d(maps, depthwise.weight, depthwise.bias, 2, 1, groups=4)
    maps = torch.where(maps > 0, maps, 0.01 * maps)
    capsules = torch.einsum("dc,bcyx->byxd", pointwise.weight[..., 0, 0], maps) + pointwise.bias
    for cell in model.stages[1].cells:
        capsules = cell(capsules)
    primary = model.forward_intermediates(images, intermediates_only=True)[1]
    torch.testing.assert_close(primary, F.gelu(capsules).permute(0, 3, 1, 2))


@torch.no_grad()
def test_public_view_reads_neighbours_as_a_capsule() -> None:
    stage = PrimaryStage(3, 4, 0, routing="conv", public_view=True)
    maps = torch.rand(2, 3, 8, 10)
    made = stage.make(maps)
    assert torch.equal(stage(maps), F.gelu(made.reshape(2, 4 * 5, 4).transpose(1, 2).view(2, 4, 4, 5)))
    stage.public_view = False
    assert torch.equal(stage(maps), F.gelu(made))


@torch.no_grad()
def test_rows_of_the_attention_sum_to_one() -> None:
    model = some()
    with record(model) as trace:
        model(torch.rand(2, 3, 64, 64))
    names = [name for name in trace if name.startswith("stages.")]
    assert len(names) == 4 and trace[names[0]].shape == (2, 1, 256, 64)
    for name in names:
        torch.testing.assert_close(trace[name].sum(3), torch.ones_like(trace[name][..., 0]))


@torch.no_grad()
def test_concepts_see_only_the_capsule_of_the_label() -> None:
    model = some()
    capsules = model.capsules(torch.rand(4, 3, 64, 64))
    labels = torch.tensor([0, 2, 1, 1])
    scores = model.concept_scores(capsules, labels)
    assert scores.shape == (4, 10)
    others = F.one_hot(labels, 3).unsqueeze(2)
    noisy = Capsules(torch.where(others > 0, capsules.pose, torch.randn_like(capsules.pose)), capsules.activation)
    assert torch.equal(model.concept_scores(noisy, labels), scores)
    chosen = capsules.activation.argmax(1)
    assert torch.equal(model.concept_scores(capsules), model.concept_scores(capsules, chosen))
    with pytest.raises(UsageError, match="num_concepts is 0"):
        some(num_concepts=0).concept_scores(capsules)


def test_loss_of_the_concepts() -> None:
    model, labels = some(num_concepts=3).double(), torch.tensor([0, 2])
    capsules = model.capsules(torch.rand(2, 3, 64, 64, dtype=torch.float64))
    capsules = Capsules(capsules.pose.detach().requires_grad_(), capsules.activation)
    concepts, expected = torch.tensor([[1, 0, 0], [0, 1, 1]]), 0.0
    for b, label in enumerate(labels.tolist()):
        for k in range(3):
            score = model.concepts.weight[k] @ capsules.pose[b, label] + model.concepts.bias[k]
            share = 1 / (1 + math.exp(-score.item()))
            expected -= math.log(share if concepts[b, k] else 1 - share) / 6
    loss = model.concept_loss(capsules, concepts, labels)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, capsules.pose)
    assert gradient.any(2).tolist() == [[True, False, False], [False, False, True]]
    with pytest.raises(UsageError, match=r"concepts are \(2, 2\)"):
        model.concept_loss(capsules, concepts[:, :2], labels)


@torch.no_grad()
def test_evaluation_does_not_depend_on_the_batch() -> None:
    model, images = some(), 3 * torch.randn(5, 3, 64, 64)
    assert torch.equal(model(images), model(images))
    torch.testing.assert_close(model(images)[:2], model(images[:2]))
    torch.testing.assert_close(model(images[:1]), model(images)[:1])
    public = some(batch_stats=True)
    assert (public(images)[:2] - public(images[:2])).abs().max() > 1e-6


@torch.no_grad()
def test_without_public_classes_numbers_share_one_function_of_the_positions() -> None:
    for stride, positions in ((2, 6), (1, 20)):
        model = some(img_size=(80, 64), class_stride=stride, public_classes=False)
        assert model.head.routing.first.in_features == positions, "a map of 5 x 4 cells before the last convolution"
        places = model.head.routing.coupling.senders
        assert (places.rows * places.columns, places.step) == (positions, 16 * stride)
        order, maps = torch.randperm(8), torch.randn(3, positions, 8)
        poses = model.head.routing(maps)
        torch.testing.assert_close(model.head.routing(maps[..., order]), poses[..., order])
    images = torch.rand(2, 3, 80, 64)
    maps = model.forward_features(images)
    made = F.conv2d(maps, model.head.conv.weight, model.head.conv.bias, padding=1).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.capsules(images).pose, model.head.routing(made))


@torch.no_grad()
def test_stochastic_depth_and_dropout_obey_evaluation() -> None:
    model, without, images = some(), some(drop_path=0.0, dropout=0.0), torch.rand(8, 3, 64, 64)
    without.load_state_dict(model.state_dict())
    assert torch.equal(model(images), without(images))
    model.stages[3].train()
    model.stages[3].parse.eval()
    changed = [not torch.equal(model.forward_features(images), without.forward_features(images)) for _ in range(20)]
    assert any(changed)


@torch.no_grad()
def test_scaled_lengths_are_below_one() -> None:
    model, scaled = some(), some(scaled=True)
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(model(images), scaled(images) * 8**0.5)
    assert (scaled(images) < 0.85).all() and scaled.score_kind == "activations"


def test_penalty_of_correlated_numbers() -> None:
    a, b = torch.randn(2, 200, dtype=torch.float64)
    capsules = torch.stack((a, 3 * a + 1, b, torch.full_like(b, 2)), 1)
    r = torch.corrcoef(torch.stack((a, b)))[0, 1]
    torch.testing.assert_close(correlation_penalty(capsules), (2 + 4 * r**2) / 12, rtol=1e-5, atol=1e-6)
    assert correlation_penalty(torch.ones(1, 3)) == 0


def test_the_penalty_is_part_of_the_loss_in_training() -> None:
    images, labels = torch.rand(6, 3, 64, 64), torch.tensor([0, 1, 2, 0, 1, 2])
    model = some(decorrelation=0.5, dropout=0.0, drop_path=0.0, batch_stats=True)
    objective, batch = ClassificationObjective(model, "margin"), Batch(images, labels)
    objective.train()
    loss, _ = objective(batch)
    capsules = model.capsules(images)
    expected = objective.loss(capsules.activation, batch) + 0.5 * correlation_penalty(model.chosen(capsules, labels))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(objective.added["decorrelation"], expected - objective.loss(capsules.activation, batch))


def test_the_decoder_reads_capsules_without_one_number() -> None:
    model = some(decoder=True, decorrelation=0.01)
    capsules, read = model.capsules(torch.rand(4, 3, 64, 64)), []
    assert model.decoder is not None
    model.decoder.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    assert model.reconstruct(capsules).shape == (4, 3, 64, 64)
    model.train().reconstruct(capsules)
    assert [(x.unflatten(1, (3, 8)).sum(1) == 0).sum(1).tolist() for x in read] == [[0] * 4, [1] * 4]


def test_couplings_have_places_and_classes_are_explained() -> None:
    model = some(img_size=(96, 64))
    grids = [m.senders for m in model.modules() if isinstance(m, Coupling)]
    assert [(g.rows, g.columns, g.step) for g in grids if g] == [(12, 8, 8), (6, 4, 16), *[(3, 2, 32)] * 2, (3, 2, 32)]
    images = torch.rand(2, 3, 96, 64)
    explanation = explain(model, images)
    heads = explanation.maps["head.routing.coupling"]
    assert heads.cells.shape == (2, 3, 2) and explanation.attention["rollout"].cells.shape == (2, 12, 8)
    assert explanation.contributions is not None and explanation.contributions.shape == (2, 7)
    trees = parse_trees(observe(model, images))
    assert [{edge.kind for edge in tree.edges} for tree in trees] == [{"vote"}] * 2
    # Contributions sum to the part along the pose of what enters the sigmoid.
    pose: Tensor = explanation.contributions.new_tensor(0)
    with torch.no_grad():
        observed = observe(model, images)
    poses = observed.exchanges["head.routing.coupling"].output[torch.arange(2), explanation.explained]
    logits = model_logits(poses)
    pose = (logits * poses).sum(1) / poses.norm(dim=1)
    torch.testing.assert_close(explanation.contributions.sum(1), pose, rtol=1e-3, atol=1e-3)


def model_logits(poses: Tensor) -> Tensor:
    """What GELU(sigmoid(x)) was made of, by bisection."""
    low, high = torch.full_like(poses, -20), torch.full_like(poses, 20)
    for _ in range(60):
        middle = (low + high) / 2
        above = F.gelu(middle.sigmoid()) > poses
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return low


@torch.no_grad()
def test_every_class_has_numbers_of_its_own() -> None:
    model = some(num_classes=4)
    maps = model.forward_features(torch.rand(2, 3, 64, 64))
    made = model.head.conv(maps).flatten(2).transpose(1, 2)
    poses = model.head.routing(made)
    for number in range(8):
        changed = made.clone()
        changed[..., number] = changed[..., number].abs() + 1
        reached = (model.head.routing(changed) != poses).any(2).any(0).nonzero().flatten().tolist()
        assert reached == [number // 2]  # of 8 numbers, the two of its quarter


def test_files_without_public_classes_keep_classes_that_share_numbers() -> None:
    assert ParseCaps.older_arguments({}) == {"public_classes": False}
    assert ParseCaps.older_arguments({"public_classes": True}) == {}


def test_recipes_name_the_network() -> None:
    assert get_model_entry("parsecaps").recipe == "parsecaps"
    with pytest.raises(UsageError, match="routing is 'dense'"):
        some(routing="dense")
    with pytest.raises(UsageError, match="class_stride is 3"):
        some(class_stride=3)
    with pytest.raises(UsageError, match="depths is"):
        some(depths=(-1, 0, 0))
