"""Subspace embedding: what a step trains, splits in a run, and a stopped run that goes on to the same weights."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mereo
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models.weights import load_tensors
from mereo.tasks.pair_margin import pair_margin_loss
from mereo.tasks.subspace_embedding import SubspaceEmbedding
from mereo.training.config import TrainConfig
from mereo.training.report import Report
from mereo.training.results import RunResult
from mereo.training.trainer import Trainer, train

TINY = {"backbone_args": {"widths": [4, 6, 8], "blocks": 1}, "hidden": [5, 3]}
ALWAYS = {"dim": 12, "each": 2, "patience": 1, "least_outputs": 2, "least_kept": 1, "threshold": 0.2}


def some(learners: int, **options: Any) -> tuple[Any, Any, Batch]:
    torch.manual_seed(0)
    model = mereo.create_model("subspace_resnet8", num_classes=12, img_size=16, learners=learners, **TINY)
    objective = SubspaceEmbedding((), {"dim": 12, **options}).objective(model, TrainConfig()).train()
    return model, objective, Batch(torch.rand(6, 3, 16, 16), torch.tensor([0, 0, 1, 1, 2, 2]))


def test_a_step_trains_one_learner_and_counts_output_times_gradient() -> None:
    model, objective, batch = some(2)
    model.head.drop.p = 0.0
    objective.trained = [0, 1]
    objective.at_step(3, 10)
    loss, outputs = objective(batch)
    loss.backward()
    part = outputs.detach()[:, 6:].requires_grad_()
    expected = pair_margin_loss(part, batch.labels)
    (gradient,) = torch.autograd.grad(expected, part)
    torch.testing.assert_close(loss, expected)
    assert not model.head.weight.grad[:6].any() and model.head.weight.grad[6:].any()
    torch.testing.assert_close(objective.sums, torch.cat((torch.zeros(6), (part * gradient).sum(0).detach())))
    whole = pair_margin_loss(F.normalize(outputs, dim=1), batch.labels)
    torch.testing.assert_close(objective.loss(outputs, batch), whole)


def configured(folder: Path, name: str, options: dict[str, Any], **more: Any) -> TrainConfig:
    return TrainConfig(**{
        "model": "subspace_resnet8", "task": "subspace_embedding", "data": "coloured_shapes", "limit": 96,
        "epochs": 4, "batch_size": 16, "img_size": 16, "device": "cpu", "output": str(folder), "name": name,
        "model_args": {**TINY, **more.pop("model_args", {})}, "tensorboard": False, "task_options": options,
        "lr": 0.01, "checkpoint_seconds": 1e-9, **more,
    })  # fmt: skip


def run(*args: Any, **more: Any) -> tuple[RunResult, list[str]]:
    report, lines = Report(silent=True), list[str]()
    report.say = lines.append  # type: ignore[method-assign]
    return train(configured(*args, **more), report, pictures=False), lines


def weights(result: RunResult) -> dict[str, torch.Tensor]:
    return load_tensors(result.folder.last)[0]


def test_without_splits_the_learners_are_fixed_and_equal(tmp_path: Path) -> None:
    never, late = (
        run(tmp_path, f"p{patience}", {**ALWAYS, "patience": patience}, model_args={"learners": 3}, epochs=1, limit=48)[
            0
        ]
        for patience in (0, 50)
    )
    ours, theirs = weights(never), weights(late)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert ours["head.learner"].tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.long
def test_a_stopped_run_with_a_split_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A split after the second epoch; after the fourth it would be too late.
    values = {1: 0.5, 2: 0.4, 3: 0.6, 4: 0.5}
    kept = Trainer.evaluate

    def fixed(self: Trainer, split: Any, *, final: bool = False) -> Any:
        scores = kept(self, split, final=final)
        scores.values["nmi"] = values.get(len(self.history) + 1, 0.5)
        return scores

    monkeypatch.setattr(Trainer, "evaluate", fixed)
    whole, lines = run(tmp_path, "whole", ALWAYS)
    splits = [line for line in lines if line.startswith("split:")]
    assert len(splits) == 1 and splits[0].startswith("split: learner 1 keeps ")
    learners = [float(row["learners"]) for row in csv.DictReader(whole.folder.history.read_text().splitlines())]
    assert learners == [1, 1, 2, 2] and weights(whole)["head.learner"].max() == 1
    optimise, calls = Trainer.optimise, list[int]()

    def stopping(self: Trainer, epoch: int, step: int, order: torch.Tensor) -> Any:
        calls.append(step)
        if len(calls) > 14:  # within an epoch of two learners
            raise KeyError("stopped")
        return optimise(self, epoch, step, order)

    monkeypatch.setattr(Trainer, "optimise", stopping)
    with pytest.raises(KeyError):
        run(tmp_path, "stopped", ALWAYS)
    monkeypatch.setattr(Trainer, "optimise", optimise)
    resumed, _ = run(tmp_path, "stopped", ALWAYS, resume=True)
    ours, theirs = weights(whole), weights(resumed)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_moments_of_new_rows_are_zero_and_a_split_waits_for_a_better_nmi() -> None:
    model, objective, batch = some(1, patience=2, least_outputs=2, least_kept=1)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        objective(batch)[0].backward()
        optimizer.step()

    def end(number: int, nmi: float) -> int:
        objective.sums = torch.arange(12.0)
        epoch: Any = type("Epoch", (), {"number": number, "epochs": 60, "generator": lambda self, _: torch.Generator()})
        objective.end_epoch(epoch(), {"nmi": nmi}, optimizer)
        return len(model.head.learners)

    assert [end(0, 0.5), end(1, 0.5), end(2, 0.4)] == [1, 1, 2]
    moments, new = optimizer.state[model.head.weight]["exp_avg"], model.head.learners[1]
    assert new.tolist() == [0, 1, 2, 3, 4, 5] and not moments[new].any() and moments[6:].any()
    assert [end(3, 0.5), end(4, 0.5), end(9, 0.6), end(10, 0.6), end(11, 0.6)] == [2, 2, 2, 2, 3]
    assert [end(20, 0.7), end(50, 0.7)] == [3, 3]  # fine-tuning
    assert objective.splits[0] == {"epoch": 3, "kept": 6, "new": 6}


def test_other_networks_and_compilation_are_refused() -> None:
    task = SubspaceEmbedding((), {"dim": 12})
    with pytest.raises(UsageError, match="without learners"):
        task.objective(mereo.create_model("embedding_resnet20", num_classes=12), TrainConfig())
    model = some(1)[0]
    with pytest.raises(UsageError, match="compile"):
        task.objective(model, TrainConfig(compile=True))
    with pytest.raises(UsageError, match="regroup"):
        SubspaceEmbedding((), {"regroup": 0})
