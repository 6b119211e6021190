"""The base class of tasks: everything about a training that depends on the kind of prediction.

Training, dry runs, evaluation and prediction use only `Task`. A task is one file with one `register_task` line.

`Metrics` are not torchmetrics': importing `torchmetrics.classification` takes 2.5 s and loads 2,100 modules beyond
PyTorch's, on every `mereo train`, and its metrics synchronise processes themselves, one collective per state, where the
engine sums a single vector.
"""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mereo.core import added_losses
from mereo.core.added_loss import loss_weights
from mereo.data import Batch, Images
from mereo.data.decode import VOID, nearest_places
from mereo.data.fields import field_in_words
from mereo.data.layout_options import LayoutOptions
from mereo.errors import UsageError, unknown
from mereo.models.network import Network
from mereo.tasks.explained import Explained, Others
from mereo.tasks.options import NoOptions, read_options
from mereo.tasks.pictures import draw_images

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Settings(Protocol):
    """The fields of a training configuration that an objective reads."""

    @property
    def loss(self) -> str: ...
    @property
    def reconstruction_weight(self) -> float: ...
    @property
    def label_smoothing(self) -> float: ...
    @property
    def mixup(self) -> float: ...
    @property
    def cutmix(self) -> float: ...


class Epoch(NamedTuple):
    """An epoch of a training, for objectives that choose its images.

    Attributes:
        number: counted from 0.
        epochs: of the training.
        steps, batch_size: of the epoch.
        images: of the training.
        generator: makes the random numbers of the epoch for a purpose.
        batches: the training images in order, prepared for the model and not augmented.
    """

    number: int
    epochs: int
    steps: int
    batch_size: int
    images: Images
    generator: Callable[[str], torch.Generator]
    batches: Callable[[], Iterable[Batch]]


class Objective(nn.Module, ABC):
    """A model and its loss as one module, so that one forward pass is distributed and compiled.

    In training, the losses that modules of the model add are part of the loss too: see `AddedLoss`. An objective
    may have such modules of its own.

    Args:
        model: the network, under the name `model`.

    Attributes:
        added: the added losses of the last step by name, weighted, (), without gradients.
        regularisers: modules that are called in place of a step of training, one around the other, as
            `regulariser(objective, step, batch)`, and give what the step gives; they may add losses.
        figures: of the epoch under way, by the names of their columns in the history; the names are fixed.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        self.regularisers = nn.ModuleList()
        self.added: dict[str, Tensor] = {}
        self.figures: dict[str, float] = {}

    @property
    def added_names(self) -> tuple[str, ...]:
        """Names of the losses that may be added."""
        return tuple(sorted(loss_weights(self)))

    def forward(self, batch: Batch) -> tuple[Tensor, Any]:
        """The loss to minimise, (), and the outputs of the model, for a prepared batch."""
        step: Callable[[Batch], tuple[Tensor, Any]] = self.step
        if self.training:
            for regulariser in self.regularisers:
                step = partial(regulariser, self, step)
        loss, outputs = step(batch)
        terms = added_losses(self, batch.labels)
        self.added = {name: term.detach() for name, term in terms.items()}
        for term in terms.values():
            loss = loss + term
        return loss, outputs

    def step(self, batch: Batch) -> tuple[Tensor, Any]:
        """The loss of the task itself, (), and the outputs of the model, for a prepared batch."""
        raise NotImplementedError(f"{type(self).__name__} must define step")

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The loss that is reported on held-out data, (), from the outputs, without regularisation."""

    def at_step(self, step: int, steps: int) -> None:
        """Set what depends on the step, such as a margin; `step` counts from 0 to `steps` - 1."""

    def begin_epoch(self, epoch: Epoch) -> None:
        """Prepare an epoch, before its first step; not called for an epoch that is resumed."""

    def order(self, epoch: Epoch) -> Tensor | None:
        """The images of an epoch, int64 (steps * batch_size,), a function of `memory()`; None for the usual order."""
        return None

    def end_epoch(self, epoch: Epoch, figures: Mapping[str, float], optimizer: torch.optim.Optimizer) -> list[str]:
        """Change what the epoch's metrics on held-out data suggest, and report it in lines; nothing by default."""
        return []

    def memory(self) -> dict[str, Any]:
        """What it remembers from step to step, as plain finite values, which are saved with the run."""
        return {}

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Take what `memory` returned."""


class Metrics(ABC):
    """Metrics of a split or of the training images of an epoch, accumulated batch by batch.

    Sums go into one vector that can be added over batches and processes (`add`). A metric that compares all samples
    with each other keeps rows as well, which are gathered (`keep`); its value must not depend on their order.

    Args:
        size: length of the vector.

    Attributes:
        state: float64 (size,).
        rows: float32 (n, columns) of each batch, on the CPU.
        final: whether intervals, and metrics that take long, are wanted; set before the first update.
    """

    final = False

    def __init__(self, size: int = 0) -> None:
        self.state = torch.zeros(size, dtype=torch.float64)
        self.rows: list[Tensor] = []

    def add(self, *sums: Tensor) -> None:
        """Add scalars and vectors, one after the other, to the vector, which stays on their device."""
        values = torch.cat([value.to(precise(value.device)).flatten() for value in sums])
        self.state = values + self.state.to(values)

    def keep(self, *columns: Tensor) -> None:
        """Keep a row for each sample of a batch: columns (batch,) or (batch, n), side by side; finite."""
        parts = [column.detach().float().reshape(len(column), -1) for column in columns]
        self.rows.append(torch.cat(parts, 1).cpu())

    def join(self, other: "Metrics") -> None:
        """Add the sums and rows of other metrics of the same task."""
        self.state = self.state + other.state.to(self.state)
        self.rows += other.rows

    @abstractmethod
    def update(self, outputs: Any, batch: Batch) -> None:
        """Update with the outputs for one batch."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The metrics by name; finite even without data."""

    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % intervals of metrics by name, where `compute` does not give them; none by default."""
        return {}


class Seen(NamedTuple):
    """The part of a stored image that a network was given.

    Attributes:
        size: height and width of the stored image.
        box: top, left, height and width of the part.
    """

    size: tuple[int, int]
    box: tuple[int, int, int, int]

    def restore(self, pixels: Tensor, outside: int = VOID) -> Tensor:
        """A map of the part in the size of the stored image, by the nearest pixel: (h, w) -> (height, width)."""
        top, left, height, width = self.box
        rows, columns = (
            torch.from_numpy(nearest_places(side, wanted))
            for side, wanted in zip(pixels.shape, (height, width), strict=True)
        )
        whole = pixels.new_full(self.size, outside)
        whole[top : top + height, left : left + width] = pixels[rows][:, columns]
        return whole


class Task(ABC):
    """One kind of prediction.

    Args:
        class_names: of the data.
        options: of the task by name; the defaults of `Options` for the others.

    Attributes:
        name: under which it is registered.
        Options: a frozen dataclass of the options, described under `Args` of its docstring; `options` is one of them.
        requires: fields of a batch that it cannot do without.
        output_kinds, input_kinds: kinds of networks that it trains, see `mereo.models.Network`.
        chooses: the metric that chooses the best epoch, and whether more or less of it is better.
        is_share: whether that metric is a share, shown in percent.
        scores_classes: whether outputs are one score for each class, (batch, classes), so that classes can be attacked,
            confused and calibrated.
        unseen_classes: whether test images may be of classes that the training images do not have.
        unit: what the entries of its data are called, in reports.
        outputs_are: what the outputs for an image are called, in reports.
        table_file: the table of predictions in a folder of them, for tasks with `cell_names`.
        file_column: the column of that table with the file that `write` wrote for each sample; None for no such files.
        finished_as: what `finish` makes of the scores of a network, as exported files name it; None for nothing.
        may_mirror: whether mirrored images mean the same, so that they may be trained on.
        losses: names that `loss` may take in a configuration; empty where the task has one loss only.
        example_model: a network of the catalogue that it can train, the default of `mereo train --task NAME`.
        colour_model, large_model: its default networks for images in colour, and for images with a side of at least 64
            pixels, if those are others.
        larger_sides: sides of images that `mereo train` may choose if time allows, divided by that of a network of
            small images, in descending order.
        example_data: a data set in the package that it can be trained on, also the default.
        settings: other defaults of `mereo train --task NAME`, by the names of fields of a configuration.
        example_settings: more of them, for the example data.
        train_metrics: whether the metrics of the training images are kept too; False if they take long.
        evaluated_at_once: least number of samples that are evaluated at once; a batch of the training if that is more.
        most_drawn: largest number of samples in a picture of predictions.
        compares: whether `explained` compares images with others.
        final_cost: time of a final evaluation, with intervals and metrics that take long, by that after an epoch.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ("images",)
    output_kinds: ClassVar[tuple[str, ...]] = ("scores",)
    input_kinds: ClassVar[tuple[str, ...]] = ("images",)
    chooses: ClassVar[tuple[str, Literal["max", "min"]]]
    is_share: ClassVar[bool] = False
    scores_classes: ClassVar[bool] = False
    unseen_classes: ClassVar[bool] = False
    losses: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str] = "images"
    outputs_are: ClassVar[str] = "classes"
    table_file: ClassVar[str] = "predictions.csv"
    file_column: ClassVar[str | None] = None
    finished_as: ClassVar[str | None] = None
    may_mirror: ClassVar[bool] = True
    example_model: ClassVar[str] = "mspcaps_tiny"
    colour_model: ClassVar[str | None] = None
    large_model: ClassVar[str | None] = None
    larger_sides: ClassVar[tuple[float, ...]] = (2.0, 1.5)
    example_data: ClassVar[str] = "digits"
    Options: ClassVar[type[Any]] = NoOptions
    settings: ClassVar[Mapping[str, Any]] = NOTHING
    example_settings: ClassVar[Mapping[str, Any]] = NOTHING
    train_metrics: ClassVar[bool] = True
    evaluated_at_once: ClassVar[int] = 256
    most_drawn: ClassVar[int] = 32
    compares: ClassVar[bool] = False
    final_cost: ClassVar[float] = 1.0

    def __init__(self, class_names: Sequence[str] = (), options: Mapping[str, Any] = NOTHING) -> None:
        self.class_names = tuple(class_names)
        self.options: Any = read_options(self.Options, options, self.name)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the classes, which are saved with the weights; empty if the outputs are not classes."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a run's history."""
        metric = self.chooses[0]
        train = (f"train_{metric}",) if self.train_metrics else ()
        figures = ("train_loss", *train, "val_loss", f"val_{metric}")
        return ("epoch", "lr", *figures, "images_per_second", "seconds")

    @property
    def cell_names(self) -> tuple[str, ...]:
        """The columns of a table of predictions, after the sample and its file; empty if they do not fit a table."""
        return ()

    @property
    def answers_each(self) -> bool:
        """Whether it has an answer for each sample that can be shown: scores of classes, or cells of a table."""
        return self.scores_classes or bool(self.cell_names)

    def num_outputs(self, num_classes: int) -> int:
        """The `num_classes` with which a network is created, given the number of classes of the data."""
        return num_classes

    def resolve_loss(self, loss: str, module: type[nn.Module]) -> str:
        """The loss of a configuration, "auto" resolved for a class of networks; UsageError for an unknown one."""
        if loss != "auto" and loss not in self.losses:
            raise unknown(f"loss of the task {self.name}", loss, ("auto", *self.losses))
        return loss

    @classmethod
    def trains(cls, module: type[Network]) -> bool:
        """Whether it trains networks of that class, by their kinds of input and output."""
        return module.output_kind in cls.output_kinds and module.input_kind in cls.input_kinds

    def check(self, batch: Batch) -> None:
        """UsageError unless a batch has the fields that the task requires."""
        for field in self.requires:
            if getattr(batch, field, None) is None:
                needs = field_in_words(field)
                raise UsageError(f"task is {self.name!r}, which needs {needs}, and the data has none; use other data.")

    def apply(self, model: nn.Module, batch: Batch) -> Any:
        """The outputs of a model in evaluation for a prepared batch."""
        return model(batch.images)

    @abstractmethod
    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """The model with its training loss."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Empty metrics of one split."""

    @abstractmethod
    def predict(self, outputs: Any, top: int = 3) -> list[dict[str, Any]]:
        """Predictions for printing, one dict of plain values for each entry of a batch, from what `kept` returns."""

    def kept(self, outputs: Any) -> Any:
        """The input of `predict` and `write`: the part of the outputs that is kept for all samples of a prediction."""
        return outputs

    def cells(self, outputs: Any) -> list[list[str | float]]:
        """The cells under `cell_names` for each sample, from what `kept` returns."""
        raise NotImplementedError(f"{type(self).__name__} has no table of predictions")

    def explained(self, outputs: Any, target: str | None = None, others: Others | None = None) -> Explained | None:
        """What `mereo explain` explains of images; None where that is the score of a class, or nothing.

        Args:
            outputs: of the network for the images, without gradients.
            target: as given on the command line; None for the most evident one.
            others: images that the explained ones are compared with, if the task compares images.

        Raises:
            UsageError: for a target that the task or an image does not have.
        """
        return None

    def class_number(self, target: str) -> int:
        """The number of a class by its name, or as class:NAME; UsageError for an unknown one."""
        name = target if target in self.class_names else target.removeprefix("class:")
        if name not in self.class_names:
            raise unknown("class", name, self.class_names)
        return self.class_names.index(name)

    def write(self, outputs: Any, names: Sequence[str], folder: Path, seen: Sequence[Seen]) -> list[Path]:
        """Write what does not fit the table of predictions; nothing by default.

        Args:
            outputs: what `kept` returned, for all samples.
            names: of the samples, all different, as file names without a suffix.
            folder: to write into; it exists.
            seen: the part of each stored image that the network was given.

        Returns:
            The files.
        """
        return []

    def read_as(self, layout: LayoutOptions) -> LayoutOptions:
        """What is stated of the layout of images for a trained network; by default what is stated already."""
        return layout

    def fit(self, train: Images) -> None:  # noqa: B027
        """Measure on the training images what predictions depend on; nothing by default."""

    def finish(self, model: nn.Module, scores: Tensor) -> Tensor:
        """The scores of a network in the form in which they are used outside: probabilities, numbers in units, ..."""
        return scores

    def outputs_in_words(self) -> str:
        """What a network of this task returns, in a sentence of its card."""
        return f"The outputs belong to the task {self.name}."

    @property
    def fitted(self) -> dict[str, Any]:
        """What `fit` has measured, as plain values that are saved with the weights; `restore` takes them."""
        return {}

    def restore(self, metadata: Mapping[str, Any]) -> None:  # noqa: B027
        """Take from the metadata of weights what `fit` has measured; UsageError for values that do not fit."""

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        """Lines about the data that are printed before a training; none by default."""
        return []

    def remarks(self, model: nn.Module) -> list[str]:
        """Lines about what metrics of a network mean, printed with a training and an evaluation; none by default."""
        return []

    @abstractmethod
    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        """A prepared batch of random values with the shapes of a training batch, for dry runs."""

    def titles(self, batch: Batch) -> list[str]:
        """A title for each image in a picture of training data."""
        return [""] * len(batch.images)

    def pictured(self, images: Images) -> Tensor:
        """Where the test images of a picture are, int64 (n,): `most_drawn` that are evenly spaced."""
        count = min(self.most_drawn, len(images))
        return torch.arange(count) * (len(images) // count)

    @abstractmethod
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw predictions for a batch, given as loaded and as prepared for the model."""

    def draw_samples(self, batch: Batch, path: Path) -> None:
        """Draw training data, as it was loaded."""
        draw_images(batch.images, self.titles(batch), path)

    def references(self, split: Images) -> dict[str, dict[str, float]]:
        """Metrics of reference methods for the same task on a split, by their names; none by default."""
        return {}

    def show(self, value: float) -> str:
        """A value of the choosing metric as text."""
        return f"{100 * value:.2f} %" if self.is_share else f"{value:.4f}"

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        """The rows of the closing table that show test figures, as (name, value).

        Args:
            figures: metrics of the chosen epoch on the test data.
            chosen: how the epoch was chosen.
        """
        metric = self.chooses[0]
        if f"{metric}_low" in figures:
            low, high = (self.show(figures[f"{metric}_{end}"]) for end in ("low", "high"))
            chosen = f"{chosen}; 95 % interval {low} to {high}"
        return [(f"test {metric}", f"{self.show(figures[metric])} ({chosen})")]


def precise(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device, used for sums."""
    return torch.float32 if device.type == "mps" else torch.float64


def csv_bytes(rows: Sequence[Sequence[str]]) -> bytes:
    """The content of a table that `write` writes, the names of its columns first."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")


TASKS: dict[str, type[Task]] = {}


def register_task(task: type[Task]) -> type[Task]:
    """Add a task to the catalogue under its name; used as a decorator."""
    if TASKS.setdefault(task.name, task) is not task:
        raise UsageError(f"task {task.name!r} is registered twice.")
    return task


def get_task(name: str) -> type[Task]:
    """The task of that name; UsageError with the nearest names if there is none."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def task_for(module: type[Network], name: str) -> type[Task]:
    """The task of that name; if no task was chosen and it does not train a class of networks, the first task that does.

    Args:
        name: of a task; "classification", the default of a configuration, counts as no choice.

    Raises:
        UsageError: for a task that is not for such networks.
    """
    task = get_task(name)
    if task.trains(module):
        return task
    others = [each for each in TASKS.values() if each.trains(module)]
    if name == "classification" and others:
        return others[0]
    kinds = f"networks from {' or '.join(task.input_kinds)} to {' or '.join(task.output_kinds)}"
    remedy = f"give --task {others[0].name}" if others else f"give a network such as {task.example_model}"
    raise UsageError(
        f"task is {name!r}, which is for {kinds}, and {module.__name__} gives {module.output_kind} of"
        f" {module.input_kind}; {remedy}."
    )


def task_with(fields: Sequence[str], data: str | None = None) -> type[Task] | None:
    """The task that needs most of the fields that data has, and no others; None if no task learns from such data.

    Args:
        fields: names of `Batch` fields.
        data: name of the data set; of several tasks, the one whose example it is.
    """
    fitting = [task for task in TASKS.values() if task.requires != ("images",) and {*task.requires} <= {*fields}]
    return max(fitting, key=lambda task: (len(task.requires), task.example_data == data), default=None)


def list_tasks() -> list[str]:
    """Names of the tasks, sorted."""
    return sorted(TASKS)
