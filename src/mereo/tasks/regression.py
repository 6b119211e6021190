"""Regression: numbers for each image, such as an age or an angle."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.layout_options import LayoutOptions
from mereo.errors import UsageError
from mereo.tasks.base import NOTHING, Objective, Settings, Task, register_task
from mereo.tasks.pictures import draw_images
from mereo.tasks.rows import RowMetrics
from mereo.tasks.several_outputs import as_logits, check_unmixed, held_field, logits_of

SAVED = "targets"
"""Where the metadata of weights has the mean and spread of the numbers."""
_LOSSES = {"smooth_l1": F.smooth_l1_loss, "mse": F.mse_loss}
_CHUNK, _NAMED = 4096, 3


class RegressionObjective(Objective):
    """A network and the loss of its outputs against standardised numbers.

    L = mean_{b,k} l(z_bk, (t_bk - m_k) / s_k),   smooth_l1: l(z, y) = d^2 / 2 for d = |z - y| < 1, else d - 1/2
                                                  mse:       l(z, y) = (z - y)^2

    Args:
        model: z (batch, columns).
        kind: of the loss.
        mean, std: m and s of the training images, (columns,).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, kind: str, mean: Tensor, std: Tensor) -> None:
        super().__init__(model)
        self.kind = kind
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = logits_of(self.model, batch)
        return self._compared(outputs, batch), outputs * self.std + self.mean

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self._compared((outputs - self.mean.to(outputs)) / self.std.to(outputs), batch)

    def _compared(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.values is not None
        return _LOSSES[self.kind](outputs, (batch.values - self.mean.to(outputs)) / self.std.to(outputs))


class RegressionMetrics(RowMetrics):
    """Mean absolute error, root mean squared error and R2, each the mean over the columns.

    mae = mean_k mean_b |e_bk|,   rmse = mean_k sqrt(mean_b e_bk^2),
    r2 = mean_k 1 - sum_b e_bk^2 / sum_b (t_bk - mean_b t_bk)^2,   e = output - t

    As in scikit-learn, R2 of a column whose numbers are all the same is 0, or 1 without any error. With several columns
    there are the errors of each as well.
    """

    def update(self, outputs: Tensor, batch: Batch) -> None:
        assert batch.values is not None
        self.keep(batch.values, outputs)

    def figures(self, true: Tensor, outputs: Tensor) -> dict[str, float]:
        count, errors = max(len(true), 1), outputs - true
        absolute, squares = errors.abs().sum(0) / count, errors.square().sum(0)
        spread = (true - true.sum(0) / count).square().sum(0)
        known = spread > 0
        r2 = torch.where(known, 1 - squares / spread.where(known, 1), (squares == 0).double() * bool(len(true)))
        roots = (squares / count).sqrt()
        figures = {"r2": r2.mean(), "mae": absolute.mean(), "rmse": roots.mean()}
        if len(self.names) > 1:
            figures |= {f"mae {name}": value for name, value in zip(self.names, absolute, strict=True)}
        return {name: float(value) for name, value in figures.items()}


@register_task
class Regression(Task):
    """Numbers for each image, such as an age, an angle or a share."""

    name = "regression"
    requires = ("images", "values")
    chooses = ("r2", "max")
    losses = tuple(_LOSSES)
    outputs_are = "numbers"
    finished_as = "values"
    may_mirror = False
    example_model = "resnet20"
    example_data = "turned_digits"
    example_settings: ClassVar[Mapping[str, Any]] = {"epochs": 15}
    train_metrics = False

    def __init__(self, class_names: Sequence[str] = (), options: Mapping[str, Any] = NOTHING) -> None:
        super().__init__(class_names, options)
        self.mean, self.std = torch.zeros(()), torch.ones(())

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    def resolve_loss(self, loss: str, module: type[nn.Module]) -> str:
        return self.losses[0] if loss == "auto" else super().resolve_loss(loss, module)

    def read_as(self, layout: LayoutOptions) -> LayoutOptions:
        return layout._replace(task=self.name, follows=False, label_column=layout.label_column or self.class_names)

    def fit(self, train: Images) -> None:
        """The mean and spread of the numbers of the training images."""
        parts = torch.arange(len(train)).split(_CHUNK)
        values = held_field(train, "values")
        if values is None:
            served = [train.batch(part, device="cpu").values for part in parts]
            values = torch.cat([each for each in served if each is not None])
        values = values.double().cpu()
        spread = values.std(0, correction=0)
        self.mean, self.std = values.mean(0).float(), spread.where(spread > 0, 1).float()

    @property
    def fitted(self) -> dict[str, Any]:
        return {SAVED: {"mean": self.mean.tolist(), "std": self.std.tolist()}}

    def restore(self, metadata: Mapping[str, Any]) -> None:
        held = metadata.get(SAVED, {})
        for name in ("mean", "std") if held else ():
            numbers = held.get(name) if isinstance(held, dict) else None
            numbers = numbers if isinstance(numbers, list) else []
            fits = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
            if not fits or len(numbers) != len(self.class_names):
                raise UsageError(f"{SAVED} of the weights has the {name} {numbers!r}; it must be a number a column.")
            setattr(self, name, torch.tensor(numbers, dtype=torch.float32))

    def finish(self, model: nn.Module, scores: Tensor) -> Tensor:
        outputs = as_logits(model, scores)
        return outputs * self.std.to(outputs) + self.mean.to(outputs)

    def outputs_in_words(self) -> str:
        each = zip(self.class_names, self.std.tolist(), self.mean.tolist(), strict=True)
        units = "; ".join(f"{name} = {std:.7g} output + {mean:.7g}" for name, std, mean in each)
        return f"The outputs are standardised numbers: {units}."

    def apply(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.finish(model, model(batch.images).float())

    def objective(self, model: nn.Module, settings: Settings) -> RegressionObjective:
        check_unmixed(self.name, settings)
        return RegressionObjective(model, settings.loss, self.mean, self.std)

    def metrics(self) -> RegressionMetrics:
        return RegressionMetrics(self.class_names)

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        return [dict(zip(self.class_names, row, strict=True)) for row in outputs.tolist()]

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(f"predicted {name}" for name in self.class_names)  # another name than in a table of true numbers

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The numbers of each image, in their units."""
        return [[float(f"{value:.7g}") for value in row] for row in outputs.tolist()]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        device = next(model.parameters()).device
        images = torch.rand(count, *model.image_shape, device=device)
        return Batch(images, values=torch.rand(count, max(model.num_classes, 1), device=device))

    def titles(self, batch: Batch) -> list[str]:
        assert batch.values is not None
        return [self._listed(row) for row in batch.values.tolist()]

    def _listed(self, row: Sequence[float]) -> str:
        """Numbers below each other, as a title; with names if there are several."""
        named = [f"{name} " if len(row) > 1 else "" for name in self.class_names]
        return "\n".join(f"{name}{value:.4g}" for name, value in [*zip(named, row, strict=True)][:_NAMED])

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Images with the predicted numbers and the true ones, in red if one is off by more than half the spread."""
        predicted = self.apply(model, prepared).cpu()
        titles, wrong = [self._listed(row) for row in predicted.tolist()], [False] * len(predicted)
        if batch.values is not None:
            true = batch.values.cpu()
            wrong = ((predicted - true).abs() > self.std / 2).any(1).tolist()
            titles = [f"{answer}\nis: {self._listed(row)}" for answer, row in zip(titles, true.tolist(), strict=True)]
        draw_images(batch.images, titles, path, wrong=wrong)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)
        several = ", means over the columns" if len(self.class_names) > 1 else ""
        return [
            *rows,
            ("errors", f"mean absolute {figures['mae']:.4g}, root mean squared {figures['rmse']:.4g}{several}"),
        ]
