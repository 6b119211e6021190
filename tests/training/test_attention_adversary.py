"""Attention adversarial training: worked numbers, the literal formulas, what a repeated pass costs and leaves alone."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.core import Coupling
from mereo.core.repeated import RepeatedPass
from mereo.errors import UsageError
from mereo.models.registry import families
from mereo.training.attention_adversary import AttentionAdversary, difference_weights
from mereo.training.config import TrainConfig
from mereo.training.plan import make_plan
from mereo.training.regularisers import regularise
from mereo.training.trainer import train

FIRST, SECOND = (0.5, 0.0, -0.5), (0.5, 0.1, -0.5)
ONE = torch.tensor([1])


class Pooling(nn.Module):
    """One score of sum softmax(s) v, from the scores s (batch, tokens)."""

    def __init__(self, values: tuple[float, ...] = (2.0, -1.0, 0.5)) -> None:
        super().__init__()
        self.coupling, self.values = Coupling("senders"), nn.Parameter(torch.tensor(values).double())

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        allowed = None if mask is None else mask[:, None, None]
        return (self.coupling(scores[:, None, None], allowed) * self.values).sum(-1)[:, 0]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What was added to the scores in each repeated pass."""
    found: list[Tensor] = []
    again = RepeatedPass.again

    def noted(self: RepeatedPass[Any], added: list[Tensor]) -> Any:
        found.extend(each.detach() for each in added)
        return again(self, added)

    monkeypatch.setattr(RepeatedPass, "again", noted)
    return found


def row(*values: float) -> Tensor:
    return torch.tensor([values]).double()


def close(found: Tensor, expected: tuple[float, ...], digits: float = 1e-4) -> None:
    torch.testing.assert_close(found.flatten().double(), torch.tensor(expected).double(), atol=digits, rtol=0)


@pytest.mark.parametrize(
    ("scores", "kind", "direction", "r", "losses"),
    [
        (FIRST, "at", "global", (-0.738486, 0.670871, 0.067615), (0.371434, 0.701407)),
        (FIRST, "iat", "row", (-0.738486, 0.670871, 0.067615), (0.371434, 0.701407)),
        (SECOND, "at", "global", (-0.7316, 0.6797, 0.0519), (0.389243, 0.731921)),
        (SECOND, "iat", "global", (-0.5234, 0.2180, 0.0436), (0.389243, 0.554254)),
        (FIRST, "iat", "published", (0.738486, -0.670871, -0.067615), (0.371434, 0.206294)),
    ],
)
def test_worked_numbers(scores: Any, kind: str, direction: str, r: Any, losses: Any, moved: list[Tensor]) -> None:
    found = AttentionAdversary(kind, direction=direction).loss(Pooling(), row(*scores), ONE)
    close(moved[0], r, 6e-5)
    close(torch.stack(found).detach(), losses, 1e-6)


def test_worked_numbers_of_vat(moved: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.tensor([1.0, 1.0, -1.0]).double().view_as(x))
    clean, extra = AttentionAdversary("vat").loss(Pooling(), row(*FIRST))
    close(moved[1], (0.735888, -0.674296, -0.061592), 1e-6)
    assert clean.item() == 0 and abs(extra.item() - 0.044059) < 1e-6


def literal_iat(scores: Tensor, values: Tensor, eps: float, direction: str) -> Tensor:
    """The perturbation by all T x T coefficients, with automatic derivatives."""
    differences = scores[:, None] - scores[None]
    size = differences.norm(dim=1, keepdim=True) if direction == "row" else differences.norm()
    differences = differences / size.clamp(min=1e-12)
    a = torch.zeros_like(differences, requires_grad=True)
    score = (torch.softmax(scores + (a * differences).sum(1), 0) * values).sum()
    (slope,) = torch.autograd.grad(F.softplus(-score), a)
    return (eps * slope / slope.norm() * differences).sum(1)


@pytest.mark.parametrize("direction", ["row", "global"])
def test_the_closed_form_is_the_literal_one(direction: str, moved: list[Tensor]) -> None:
    scores, values = torch.randn(7).double(), torch.randn(7).double()
    AttentionAdversary("iat", 0.7, direction=direction).loss(Pooling(tuple(values.tolist())), scores[None], ONE)
    torch.testing.assert_close(moved[0].flatten(), literal_iat(scores, values, 0.7, direction))


def test_weights_are_the_sums_of_the_differences() -> None:
    scores, valid = 3 + torch.randn(2, 3, 4, 5), torch.rand(2, 3, 4, 5) < 0.7
    pairs = valid.unsqueeze(-1) & valid.unsqueeze(-2)
    differences = (scores.unsqueeze(-1) - scores.unsqueeze(-2)).masked_fill(~pairs, 0).double()
    for direction, axes in (("row", (-1,)), ("global", (-1, -2))):
        expected = (differences / differences.norm(dim=axes, keepdim=True).clamp(min=1e-12)).square().sum(-1)
        found = difference_weights(scores, valid, (-1,), direction).double()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not difference_weights(torch.full((1, 1, 1, 6), 0.1), torch.ones(1, 1, 1, 6).bool(), (-1,), "row").any()


def test_vat_finds_the_direction_of_the_largest_divergence(moved: list[Tensor]) -> None:
    model, scores = Pooling(), row(0.3, -0.2, 0.1)
    _, extra = AttentionAdversary("vat", 0.05, power_iterations=5).loss(model, scores)
    around = F.normalize(torch.randn(10_000, 3, generator=torch.Generator().manual_seed(0)).double(), dim=1)
    with torch.no_grad():
        p, q = model(scores).sigmoid(), model(scores + 0.05 * around).sigmoid()
        largest = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).max()
    assert abs(moved[-1].norm().item() - 0.05) < 1e-9 and extra.item() > 0.98 * largest.item()


@pytest.mark.parametrize("kind", ["at", "iat", "vat", "ivat"])
def test_limits_and_masks(kind: str, moved: list[Tensor]) -> None:
    model, scores, y = Pooling(), torch.randn(4, 3).double(), torch.tensor([0, 1, 1, 0])
    clean, none = AttentionAdversary(kind, 0.0).loss(model, scores, y)
    assert none == (clean if kind in ("at", "iat") else 0) and not moved
    torch.manual_seed(0)
    extra = AttentionAdversary(kind, 0.01).loss(model, scores, y)[1]
    assert extra >= none
    torch.manual_seed(0)
    torch.testing.assert_close(AttentionAdversary(kind, 0.01).loss(model, scores + 5, y)[1], extra)
    mask, hidden = torch.tensor([[True, True, False]]).expand(4, 3), scores.clone()
    hidden[:, 2] = 9.0
    for content in (scores, hidden):
        torch.manual_seed(0)
        moved.append(AttentionAdversary(kind).loss(model, content, y, mask)[1])
    assert torch.equal(moved[-1], moved[-2 - (2 if kind in ("vat", "ivat") else 1)])
    assert not moved[-2][..., 2].any()
    model.eval()
    assert AttentionAdversary(kind).loss(model, scores, y)[1] == none


def test_examples_without_labels() -> None:
    model, scores = Pooling(), torch.randn(4, 3).double()
    losses = []
    for y in (torch.tensor([0, 1, 1, 0]), torch.tensor([-1, 1, -1, 0]), None):
        torch.manual_seed(0)
        losses.append(AttentionAdversary("vat").loss(model, scores, y))
    (_, first), (some, second), (none, third) = losses
    assert first == second == third and none == 0
    torch.testing.assert_close(some, AttentionAdversary("at").loss(model, scores[[1, 3]], torch.tensor([1, 0]))[0])
    with pytest.raises(UsageError, match="y is None"):
        AttentionAdversary("at").loss(model, scores)


class Layers(nn.Module):
    """Two layers of attention with dropout and batch norm, and a count of the calls of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mereo.create_mechanism("multi_head", 8, heads=2) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(2))
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 3)
        self.calls = 0
        self.layers[0].register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.calls += 1

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.dropout(norm(x.mT).mT, 0.2, self.training)
            x = x + self.drop(layer(x))
        return self.head(x.mean(1))


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_repeated_pass_is_a_whole_one(layers: str) -> None:
    model, x, y = Layers().double(), torch.randn(6, 5, 8).double(), torch.arange(6) % 3
    adversary = AttentionAdversary("at", layers=layers)
    names = ["layers.0.coupling", "layers.1.coupling"][-1 if layers == "last" else 0 :]

    def whole(change: dict[str, Any]) -> Tensor:
        torch.manual_seed(1)
        with mereo.intervene(model, scores=change), mereo.record(model, names, gradients=True) as trace:
            traces.append(trace)
            return F.cross_entropy(model(x), y)

    traces: list[Any] = []
    statistics = model.norms[1].running_mean.clone()
    clean, once = whole({}), model.norms[1].running_mean.clone()
    slopes = torch.autograd.grad(clean, [traces[0].calls(name)[0].scores for name in names], retain_graph=True)
    length = sum(slope.flatten(1).square().sum(1) for slope in slopes).sqrt().view(-1, 1, 1, 1)
    extra = whole({name: lambda s, r=slope / length: s + r for name, slope in zip(names, slopes, strict=True)})
    expected = torch.autograd.grad(clean + extra, list(model.parameters()))
    calls = model.calls
    model.norms[1].running_mean.copy_(statistics)
    torch.manual_seed(1)
    found = adversary.loss(model, x, y)
    torch.testing.assert_close(torch.stack(found), torch.stack((clean, extra)))
    torch.testing.assert_close(torch.autograd.grad(sum(found), list(model.parameters())), expected)
    assert model.calls == calls + (1 if layers == "last" else 2)
    torch.testing.assert_close(model.norms[1].running_mean, once)


@pytest.mark.long
def test_every_family_repeats_exactly_or_is_refused() -> None:
    for family, entry in families("images").items():
        model = mereo.create_model(entry.name, **(entry.tiny or {})).train()
        images = torch.rand(4, *model.image_shape)
        try:
            chosen = AttentionAdversary("ivat").chosen(model)
        except UsageError:
            continue
        passes = RepeatedPass(model, chosen, lambda m=model, x=images: m(x))
        first = passes.first()
        buffers = [buffer.clone() for buffer in model.buffers()]
        assert torch.equal(first, passes.again([torch.zeros_like(call.scores) for call in passes.calls])), family
        assert all(torch.equal(*pair) for pair in zip(model.buffers(), buffers, strict=True)), family
        if model.output_kind != "scores":
            continue  # a training without labels needs scores of classes, and is refused for others
        losses = AttentionAdversary("ivat").loss(model, images, torch.zeros(4).long())
        sum(losses).backward()
        assert all(loss.isfinite() for loss in losses), family


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, moved: list[Tensor]) -> None:
    model = mereo.create_model("vit_tiny", depth=1, embed_dim=16, num_heads=2, img_size=16, patch_size=8).to(dtype)
    for kind in ("iat", "vat"):
        losses = AttentionAdversary(kind, 2.0).loss(model, torch.rand(2, 3, 16, 16, dtype=dtype), torch.tensor([0, 1]))
        sum(losses).backward()
        assert all(loss.isfinite() for loss in losses)
        length = moved[-1].float().flatten(1).norm(dim=1)
        assert moved[-1].dtype == dtype and (length > 0.5).all() and (length < 2.1).all()


def test_attention_of_other_libraries_is_left_as_it_was() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    adversary, x = AttentionAdversary("at"), torch.randn(3, 4, 8)

    def run() -> tuple[Tensor, Tensor]:
        out = model(x)
        return out.square().mean(), out

    clean, extra, _ = adversary.losses(model, model, run, 3)
    assert (
        extra > clean and "forward" not in vars(model.self_attn) and nn.Module.__call__.__name__ == "_wrapped_call_impl"
    )
    before = nn.Module.__call__
    with pytest.raises(ZeroDivisionError):
        adversary.losses(model, model, lambda: 1 / 0, 3)
    assert nn.Module.__call__ is before and "forward" not in vars(model.self_attn)


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "fgsm"), ("eps", -1.0), ("xi", 0.0), ("power_iterations", 0), ("direction", "columns"), ("norm", "batch"),
     ("layers", "first"), ("layers", [7]), ("queries", "first"), ("lam", math.inf)],
)  # fmt: skip
def test_wrong_arguments(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        AttentionAdversary(**{name: value}).loss(Pooling(), row(*FIRST), ONE)


def test_labels_out_of_range() -> None:
    with pytest.raises(UsageError, match="y has 2"):
        AttentionAdversary("at").loss(Pooling(), row(*FIRST), torch.tensor([2]))


@pytest.mark.parametrize(
    ("given", "named"),
    [({"model": "resnet20", "model_args": {}, "attention_adversary": "at"}, "attention_adversary"),
     ({"attention_adversary": "iat", "compile": True}, "compile"),
     ({"attention_adversary": "iat", "attention_adversary_args": {"epsilon": 1}}, "epsilon"),
     ({"attention_adversary": "iat", "attention_adversary_args": {"eps": "much"}}, "eps"),
     ({"attention_adversary_args": {"eps": 1}}, "attention_adversary_args"),
     ({"attention_adversary": "ivat", "task": "segmentation", "model": "unet_small", "data": "shape_masks",
       "model_args": {}}, "attention_adversary")],
)  # fmt: skip
def test_trainings_that_cannot_be_are_refused(small_config: Any, given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        make_plan(small_config(**given)).build_model()


def test_a_training_adds_and_reports_the_loss(small_config: Any, silent: Any) -> None:
    config = small_config(epochs=1, attention_adversary="iat", attention_adversary_args={"eps": 2, "lam": 0.5})
    run = train(config, silent, pictures=False)
    kept = TrainConfig.from_yaml(run.folder.config)
    assert (kept.attention_adversary, kept.attention_adversary_args) == ("iat", {"eps": 2, "lam": 0.5})
    assert "train_attention_adversary" in run.folder.history.read_text().partition("\n")[0]
    plan = make_plan(config)
    objective = regularise(plan.make_task().objective(plan.build_model(), plan.config), plan.config)
    batch = plan.make_task().example(objective.model, 4)
    loss, scores = objective(batch)
    # With the added losses of the task itself, such as of a decoder.
    torch.testing.assert_close(loss - sum(objective.added.values()), objective.loss(scores, batch))
    assert 0.3 < objective.added["attention_adversary"] / objective.loss(scores, batch) < 0.7
