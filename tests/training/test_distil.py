"""Distillation: worked losses, a loop by hand, couplings, single layers, checkpoints, wrong arguments."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mereo
from mereo import Match, distil
from mereo.data import ImageSet
from mereo.errors import MereoError, UsageError
from mereo.mechanisms.attention import MultiHeadAttention, WindowAttention
from mereo.training.matching import kl_of_logits, kl_of_shares, squares
from mereo.training.order import epoch_order


class Net(nn.Module):
    def __init__(self, seed: int, dim: int = 6) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.drop, self.norm = nn.Linear(dim, dim), nn.Dropout(0.2), nn.BatchNorm1d(dim)
        self.last = nn.Linear(dim, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.drop(self.first(x))))


def samples(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


QUIET = {"progress": False}


def test_worked_losses() -> None:
    teacher, student = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.25, 0.5]])
    torch.testing.assert_close(kl_of_shares(student, teacher), torch.tensor(2.0).log())
    assert kl_of_shares(teacher, student).isfinite(), "a student that leaves a pair out has a finite loss"
    assert kl_of_shares(teacher, teacher) == 0
    assert squares(student, teacher) == 0.0625 * 2 + 0.25
    logits, others = samples(4, 7), samples(4, 7, seed=6)
    expected = 4 * kl_of_shares((logits / 2).softmax(-1), (others / 2).softmax(-1))
    torch.testing.assert_close(kl_of_logits(logits, others, 2.0), expected)


def test_a_distillation_is_the_loop_written_by_hand() -> None:
    teacher, student, data = nn.Linear(4, 3), nn.Linear(4, 3), samples(10, 4)
    twin = copy.deepcopy(student)
    result = distil(teacher, student, data, [Match(weight=2.0)], epochs=2, batch_size=4, lr=0.1, seed=3, **QUIET)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=0.1, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    means = []
    for epoch in range(2):
        total = 0.0
        for indices in epoch_order(3, epoch, 10).split(4):
            loss = 2 * F.mse_loss(twin(data[indices]), teacher(data[indices]).detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(indices)
        means.append(total / 10)
    torch.testing.assert_close(student.weight, twin.weight)
    assert [row["loss"] for row in result.history] == pytest.approx(means) and result.steps == 6
    assert result.loss == result.history[-1]["output mse"]


def test_couplings_are_matched_through_what_record_shows() -> None:
    torch.manual_seed(0)
    teacher, student = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)
    data = samples(16, 5, 8)
    match = Match("coupling", "coupling", loss="kl")
    result = distil(teacher, student, data, [match], epochs=60, lr=0.03, batch_size=16, **QUIET)
    assert result.loss < 0.1 * result.history[0]["loss"]
    with mereo.record(teacher.eval()) as of_teacher, mereo.record(student.eval()) as of_student:
        teacher(data), student(data)
    assert not of_student["coupling"].requires_grad
    assert (of_teacher["coupling"] - of_student["coupling"]).abs().max() < 0.4


def test_couplings_inside_tiles_are_matched_over_the_whole_image() -> None:
    torch.manual_seed(0)
    teacher, student = (nn.Sequential(WindowAttention(8, 2, 2)) for _ in range(2))
    place = "0.coupling"
    result = distil(teacher, student, samples(4, 4, 4, 8), [Match("coupling", place)], epochs=8, lr=0.02, **QUIET)
    assert 0 < result.loss < result.history[0]["loss"]


def test_a_layer_predicts_couplings_and_only_it_is_trained() -> None:
    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.predictor = MultiHeadAttention(8, 2), nn.Linear(8, 10)
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(self.norm(x.mT).mT) + self.predictor(x).mean()

    def by_rows(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(student, teacher.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    teacher, student = MultiHeadAttention(8, 2), Student()
    before = copy.deepcopy(student.state_dict())
    match = Match("coupling", "coupling", "predictor", student_what="layer", loss=by_rows)
    result = distil(teacher, student, samples(8, 5, 8), [match], trained=["predictor"], epochs=5, **QUIET)
    changed = {name for name, value in student.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"predictor.weight", "predictor.bias"}, "frozen batch norms keep their statistics"
    assert all(parameter.requires_grad for parameter in student.parameters()) and student.training
    assert list(result.history[0]) == ["loss", "predictor by_rows"]


def test_layers_outputs_and_a_task_are_added_up() -> None:
    teacher, student = Net(0), Net(1)
    matches = [Match("layer", "first", weight=3.0), Match(loss="kl", temperature=2.0)]
    target = torch.arange(12) % 3

    def prepare(tensors: tuple, draws: torch.Generator) -> tuple:
        return tensors[:1], tensors[1]

    row = distil(
        teacher, student, (samples(12, 6), target), matches, task="cross_entropy", task_weight=0.5, prepare=prepare,
        epochs=2, **QUIET,
    ).history[0]  # fmt: skip
    assert set(row) == {"loss", "first mse", "output kl", "task"}
    assert row["loss"] == pytest.approx(row["first mse"] + row["output kl"] + row["task"], rel=1e-5)
    assert teacher.training and all(parameter.grad is None for parameter in teacher.parameters())


def test_images_are_normalised_and_labels_are_the_target() -> None:
    images = torch.randint(0, 256, (6, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data, seen = ImageSet(images, torch.arange(6) % 2, ("a", "b")), []
    teacher, student = (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)) for _ in range(2))
    student.pretrained_cfg = {"mean": (0.5,), "std": (0.25,)}
    student.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    result = distil(teacher, student, data, task="cross_entropy", epochs=1, batch_size=6, seed=1, **QUIET)
    order = epoch_order(1, 0, 6)
    torch.testing.assert_close(seen[0], (images[order] / 255 - 0.5) / 0.25)
    assert set(result.history[0]) == {"loss", "output mse", "task"}


def test_a_continued_distillation_repeats_an_uninterrupted_one(tmp_path) -> None:
    data, how = samples(20, 6), {"batch_size": 8, "lr": 0.01, "epochs": 4, "progress": False}
    whole, teacher = Net(1), Net(0)
    state = torch.random.get_rng_state()
    expected = distil(teacher, whole, data, **how)
    assert torch.equal(torch.random.get_rng_state(), state), "random numbers of the caller are not used up"

    stopping, path = Net(1), tmp_path / "state.safetensors"
    calls = [0]

    def stop(module: nn.Module, inputs: object) -> None:
        calls[0] += 1
        if calls[0] > 7:
            raise KeyboardInterrupt

    hook = stopping.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        distil(teacher, stopping, data, checkpoint=path, **how)
    hook.remove()
    fresh = Net(7)
    result = distil(teacher, fresh, data, checkpoint=path, **how)
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in whole.state_dict().items())
    assert result.history == expected.history and result.steps == expected.steps
    with pytest.raises(UsageError, match="another distillation"):
        distil(teacher, fresh, data, checkpoint=path, **{**how, "lr": 0.5})


def test_a_student_with_the_weights_of_its_teacher_has_no_loss() -> None:
    teacher = MultiHeadAttention(8, 2)
    matches = [Match(), Match("coupling", "coupling", loss="kl"), Match("layer", "value")]
    result = distil(teacher, copy.deepcopy(teacher), samples(4, 5, 8), matches, epochs=1, **QUIET)
    assert result.loss < 1e-12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matches": [Match("layer", "frist")]}, "first"),
        ({"matches": [Match("coupling", "first")]}, "no couplings"),
        ({"matches": [Match("layer", "first", "last")]}, "equal shapes"),
        ({"matches": []}, "nothing to learn"),
        ({"data": ()}, "data"),
        ({"data": samples(0, 6)}, "no samples"),
        ({"data": (samples(3, 6), samples(4, 6))}, "data has tensors"),
        ({"trained": ["nothing"]}, "trained"),
        ({"task": "accuracy"}, "cross_entropy"),
        ({"lr": -1.0}, "lr"),
        ({"optimizer": "adamq"}, "adamw"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_wrong_arguments_are_refused(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        distil(**{"teacher": Net(0), "student": Net(1), "data": samples(4, 6), "progress": False, **change})


def test_wrong_matches_are_refused() -> None:
    for wrong in ({"what": "outputs"}, {"loss": "l1"}, {"weight": 0.0}, {"what": "layer"}, {"temperature": -1.0}):
        with pytest.raises(UsageError):
            Match(**wrong)
    model = Net(0)
    with pytest.raises(UsageError, match="copy"):
        distil(model, model, samples(4, 6))


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(MereoError, match="loss is nan"):
        distil(Net(0), Net(1), samples(4, 6) * float("nan"), **QUIET)


def test_progress_is_printed(capsys) -> None:
    distil(nn.Linear(2, 1), nn.Linear(2, 1), samples(4, 2), epochs=2)
    assert "epoch 2/2: loss" in capsys.readouterr().err


def test_the_rate_falls_where_the_loss_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = list[float]()
    monkeypatch.setattr("mereo.training.distil.descend", lambda optimizer, rate, loss, clip: rates.append(rate))
    distil(
        nn.Linear(3, 2), nn.Linear(3, 2), samples(4, 3), epochs=13, batch_size=4, lr=1.0, schedule="plateau", **QUIET
    )
    assert rates == pytest.approx([1.0] * 12 + [0.1])
