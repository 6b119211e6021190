"""Every registered task keeps what the engine, evaluation and prediction rely on."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import mereo
from mereo.api.training import configuration
from mereo.cli.train import given as given_on
from mereo.errors import UsageError
from mereo.models.registry import get_model_entry
from mereo.tasks import TASKS, Task
from mereo.tasks.base import Seen
from mereo.tasks.options import describe_options
from mereo.training.config import TrainConfig
from mereo.training.plan import make_plan

CLASSES = ("cat", "dog", "eel")
every_task = pytest.mark.parametrize("kind", [pytest.param(TASKS[name], id=name) for name in sorted(TASKS)])


def small(task: Task) -> Any:
    """A small network with the outputs of the task."""
    entry = get_model_entry(task.example_model)
    tiny, argument = entry.tiny or {}, entry.module.outputs_argument
    classes = 256 if "tokens" in task.requires else len(CLASSES)
    outputs = {} if argument is None else {argument: task.num_outputs(classes)}
    return mereo.create_model(task.example_model, **{**tiny, **outputs})


@every_task
def test_it_is_described_in_a_file_of_its_own(kind: type[Task]) -> None:
    assert kind.__module__ == f"mereo.tasks.{kind.name}" and (kind.__doc__ or "").partition("\n")[0].endswith(".")
    assert set(kind.requires) <= set(mereo.data.Batch._fields)


@every_task
def test_a_step_has_a_loss_with_gradients(kind: type[Task]) -> None:
    task = kind(CLASSES)
    model = small(task).train()
    batch = task.example(model, 4)
    task.check(batch)
    for loss in task.losses or ("auto",):
        settings = TrainConfig(loss=task.resolve_loss(loss, type(model)))
        objective = task.objective(model, settings)
        objective.at_step(0, 10)
        value, outputs = objective(batch)
        value.backward()
        trained = [*model.get_classifier().parameters()] or [*model.parameters()]
        gradients = [p.grad for p in trained]
        assert value.isfinite() and any(grad is not None and grad.any() for grad in gradients)
        outputs = tree_map_only(Tensor, Tensor.detach, outputs)
        assert objective.loss(outputs, batch).isfinite()
        metrics = task.metrics()
        metrics.update(outputs, batch)


@every_task
def test_metrics_of_two_halves_are_those_of_the_whole(kind: type[Task]) -> None:
    task = kind(CLASSES)
    model = small(task).eval()
    batch = task.example(model, 4)
    whole, halves = task.metrics(), [task.metrics(), task.metrics()]
    with torch.no_grad():
        whole.update(task.apply(model, batch), batch)
        for half, part in zip(halves, (slice(0, 2), slice(2, 4)), strict=True):
            mine = batch._replace(**{k: v[part] for k, v in batch._asdict().items() if v is not None})
            half.update(task.apply(model, mine), mine)
    summed = task.metrics()
    for half in reversed(halves):
        summed.join(half)
    assert summed.compute() == pytest.approx(whole.compute(), rel=1e-5)
    empty = task.metrics().compute()
    assert empty.keys() == whole.compute().keys() and all(torch.tensor(list(empty.values())).isfinite())
    metric, direction = task.chooses
    assert metric in empty and direction in {"max", "min"} and f"val_{metric}" in task.columns
    assert (f"train_{metric}" in task.columns) == task.train_metrics


@every_task
def test_predictions_are_plain_values_and_can_be_drawn(kind: type[Task], tmp_path: Path) -> None:
    task = kind(CLASSES)
    model = small(task).eval()
    batch = task.example(model, 4)
    with torch.no_grad():
        outputs = task.kept(task.apply(model, batch))
    predictions = task.predict(outputs)
    assert len(predictions) == 4 and json.loads(json.dumps(predictions)) == predictions
    assert len(task.titles(batch)) == 4
    task.draw(model, batch, batch, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size
    whole = Seen((12, 10), (1, 0, 10, 10))
    files = task.write(outputs, [f"sample{place}" for place in range(4)], tmp_path, [whole] * 4)
    assert all(path.is_file() and path.is_relative_to(tmp_path) for path in files)
    metric, _ = task.chooses
    rows = task.summary(task.metrics().compute(), "chosen on validation")
    assert any(metric in name for name, _ in rows)


@every_task
def test_its_options_keep_their_values_in_yaml_and_on_the_command_line(kind: type[Task], tmp_path: Path) -> None:
    defaults = dataclasses.asdict(kind().options)
    assert [name for name, _, meaning in describe_options(kind.Options) if meaning] == list(defaults)
    path = tmp_path / "config.yaml"
    path.write_text(TrainConfig(task=kind.name, task_options=defaults).to_yaml())
    assert kind((), TrainConfig.from_yaml(path).task_options).options == kind().options
    words = [word for name, value in defaults.items() for word in (f"--task.{name.replace('_', '-')}", str(value))]
    given = configuration(*given_on(["--task", kind.name, *words])).task_options
    assert kind((), given).options == kind().options and given.keys() == defaults.keys()
    with pytest.raises(UsageError, match="no_such_option"):
        kind((), {"no_such_option": 1})
    for name in defaults:
        with pytest.raises(UsageError, match=name):
            kind((), {name: [1]})


@every_task
def test_its_example_is_what_it_trains_by_default(kind: type[Task]) -> None:
    config = configuration(*given_on(["--task", kind.name]))
    assert (config.model, config.data) == (kind.example_model, kind.example_data)
    assert all(getattr(config, name) == value for name, value in kind.settings.items())
    assert make_plan(config).task is kind
