"""`mereo.evaluate`: accuracy, calibration and robustness of trained networks."""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mereo.cli.evaluate import check, measured
from mereo.cli.options import EvaluateOptions
from mereo.cli.weights import newest_run
from mereo.data import ImageSet
from mereo.data.split import stratified
from mereo.errors import UsageError
from mereo.inference.predict import task_of
from mereo.measure.report import markdown, overview, title
from mereo.measure.trained_models import (
    TrainedModel,
    choose_data,
    load_trained_models,
    match_classes,
    read_split,
    run_config,
    short_names,
)
from mereo.models import VisionModel
from mereo.runtime.progress import Reporter
from mereo.training.results import RunResult
from mereo.training.setup import place
from mereo.workflow.arrays import NAME, class_numbers, image_set
from mereo.workflow.display import html_table, png, read_picture, text_table
from mereo.workflow.images import labelled
from mereo.workflow.networks import trained_network
from mereo.workflow.options import fit, options_of

_ELSEWHERE = {"weights": "it is the first argument, model", "json": "use `document` of the result"}


class Evaluation:
    """The figures of an evaluation: a table when printed, with confusion matrices in a notebook.

    Args:
        document: all figures, as in report.json.
        folder: with the report and the pictures.
        temporary: whether the folder is removed with this object.
    """

    def __init__(self, document: dict[str, Any], folder: Path, *, temporary: bool = False) -> None:
        self.document, self.folder = document, folder
        if temporary:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The figures of each network by its name."""
        models: dict[str, dict[str, Any]] = self.document["models"]
        return models

    @property
    def accuracy(self) -> float:
        """The accuracy of the first network."""
        return float(next(iter(self.models.values()))["accuracy"])

    @property
    def pictures(self) -> list[Path]:
        """The pictures that were drawn."""
        return sorted(self.folder.rglob("*.png"))

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows, one row a network."""
        return overview(self.models)

    @property
    def title(self) -> str:
        """The data, how many images were evaluated, and over how many views of each."""
        return title(self.document)

    @property
    def markdown(self) -> str:
        """The whole report as Markdown."""
        return markdown(self.document)

    def __str__(self) -> str:
        return f"{self.title}\n{text_table(*self.table())}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return read_picture(self.folder / next(iter(self.models)) / "confusion.png")

    def _repr_html_(self) -> str:
        pictures = [png(read_picture(self.folder / name / "confusion.png")) for name in self.models]
        return html_table(["data"], [[self.title]]) + html_table(*self.table()) + "".join(pictures)


def _on_arrays(network: VisionModel, data: Any, name: str) -> ImageSet:
    """A pair of images and labels at the size of a network."""
    images, labels = labelled(data)
    known = network.class_names or tuple(str(number) for number in range(network.num_classes))
    return image_set(images, class_numbers(labels, known, name), known, network)


def _networks(models: Sequence[Any], options: EvaluateOptions, data: Any) -> list[TrainedModel]:
    """The networks with their images: those of the command where all have files, else read here."""
    sources = [model.folder.path if isinstance(model, RunResult) else model for model in models]
    if (data is None or isinstance(data, str | Path)) and all(isinstance(source, str | Path) for source in sources):
        return load_trained_models(
            [Path(source) for source in sources], data=options.data, data_root=options.data_root, split=options.split,
            limit=options.limit, device=options.device, seed=options.seed,
        )  # fmt: skip
    return _in_memory(models, options, data)


def _in_memory(models: Sequence[Any], options: EvaluateOptions, data: Any) -> list[TrainedModel]:
    """The networks with their images, where a network or the images are in memory."""
    loaded = [trained_network(model, options.device) for model in models]
    networks, sources = [network for network, _ in loaded], [source for _, source in loaded]
    for network, source in loaded:
        if network.headless:
            raise UsageError(f"{source} has no scores (num_classes is 0); there is nothing to evaluate.")
    configs = [run_config(source) if source.exists() else None for source in sources]
    in_memory = data is not None and not isinstance(data, str | Path)
    name = NAME if in_memory else choose_data(networks, configs, None if data is None else str(data))
    trained = []
    for label, (network, source), config in zip(short_names(sources), loaded, configs, strict=True):
        if in_memory:
            split: Any = _on_arrays(network, data, label)
        else:
            split = read_split(network, config, name, options.data_root, options.split)
            split = match_classes(split, network, name) if task_of(network).scores_classes else split
        if options.limit is not None and options.limit < len(split):
            split = split.subset(stratified(split.strata, options.limit, options.seed)[1])
        placed = place(split, next(network.parameters()).device)
        trained.append(TrainedModel(label, source, network, placed, placed.class_names, name))
    return trained


def evaluate(
    model: Any = None, *, data: Any = None, out: str | Path | None = None, quiet: bool = False, **options: Any
) -> Evaluation:
    """Evaluate trained networks, as `mereo evaluate` does.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network; what `mereo.train` returned; or a
            list of these. The newest run when None.
        data: a data set or a folder of images, by default the data that the networks were trained on; or a pair
            (images, labels) of arrays or tensors, the labels being names or numbers of the network's classes.
        out: folder for the report and the pictures; by default a temporary one.
        quiet: print no progress.
        options: those of the command: split, limit, tta, corruptions, equivariance, attack, batch_size, device and
            others.

    evaluation = mereo.evaluate("runs/mspcaps_tiny-photos", corruptions=True)
    evaluation.accuracy; evaluation.models; evaluation.pictures
    """
    models = list(model) if isinstance(model, list | tuple) else [newest_run() if model is None else model]
    named = str(data) if isinstance(data, str | Path) else None
    wanted = fit("out", out, Path | None)
    parsed = options_of(EvaluateOptions, "mereo.evaluate", options, _ELSEWHERE, data=named, out=wanted)
    check(parsed)
    if not models:
        raise UsageError("model is an empty list; give at least one network.")
    trained = _networks(models, parsed, data)
    folder = Path(tempfile.mkdtemp(prefix="mereo-evaluation-")) if wanted is None else wanted
    parsed = replace(parsed, out=folder)
    try:
        document, _ = measured(parsed, trained, [network.source for network in trained], Reporter(silent=quiet))
    except BaseException:
        if wanted is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Evaluation(document, folder, temporary=wanted is None)
