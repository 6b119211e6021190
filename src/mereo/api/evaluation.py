"""`mereo.evaluate`: accuracy, calibration and robustness of trained networks."""

import dataclasses
import inspect
import json
import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from mereo.api.arrays import NAME, class_numbers, image_set
from mereo.api.display import html_table, png, read_picture
from mereo.api.images import labelled, stored_images
from mereo.api.networks import newest_run, trained_network
from mereo.data import ImageSet
from mereo.data.split import stratified
from mereo.errors import UsageError, check_not_negative, check_positive, check_seed
from mereo.files import check_outputs, write_atomically
from mereo.inference.predict import task_of
from mereo.measure.evaluation import evaluate_models
from mereo.measure.evaluation_plan import Plan
from mereo.measure.report import markdown, overview, title
from mereo.measure.trained_models import (
    TrainedModel,
    choose_data,
    load_trained_models,
    match_names,
    read_split,
    run_config,
    short_names,
)
from mereo.models import VisionModel
from mereo.runtime.progress import Reporter
from mereo.runtime.text import text_table
from mereo.training.arguments import typed
from mereo.training.results import RunResult
from mereo.training.setup import place

ATTACK_OPTIONS = (
    "epsilon", "attack_loss", "steps", "queries", "restarts", "attack_limit", "masking_images",
)  # fmt: skip
"""Arguments that only attacks use."""


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


@typed(weights="it is the first argument, model", json="use `document` of the result")
def evaluate(
    model: Any = None,
    *,
    data: Any = None,
    data_root: str | None = None,
    split: Literal["test", "validation", "train"] = "test",
    limit: int | None = None,
    tta: bool = False,
    five_crop: bool = False,
    couplings: bool = True,
    corruptions: bool = False,
    equivariance: bool = False,
    attack: Sequence[Literal["fgsm", "bim", "pgd", "apgd", "square"]] = (),
    epsilon: Sequence[float] = Plan.epsilons,
    attack_loss: Literal["cross_entropy", "margin", "dlr"] = "cross_entropy",
    steps: int = Plan.steps,
    queries: int = Plan.queries,
    restarts: int = Plan.restarts,
    attack_limit: int | None = Plan.attack_limit,
    masking_images: int = Plan.masking_images,
    out: str | Path | None = None,
    batch_size: int = Plan.batch_size,
    device: str = "auto",
    seed: int = 0,
    quiet: bool = False,
    show: Callable[[str, dict[str, Any]], None] | None = None,
) -> Evaluation:
    """Evaluate trained networks, as `mereo evaluate` does.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network; what `mereo.train` returned; or a
            list of these. The newest run when None.
        data: a data set or a folder of images, by default the data that the networks were trained on; or a pair
            (images, labels) of arrays or tensors, the labels being names or numbers of the network's classes.
        data_root: folder of the data sets; by default the run's, MEREO_DATA, then ./data.
        split: images to evaluate on; validation means those held out during training.
        limit: largest number of images, classes in proportion.
        tta, five_crop: mean of the scores over the image and changes of it, or over five crops.
        couplings: also measure the accuracy with replaced couplings.
        corruptions, equivariance: also measure corrupted images, and how poses change with the image.
        attack: adversarial attacks, bounded in the maximum norm.
        epsilon: largest changes of a pixel in [0, 1]; 0 is always included.
        attack_loss, steps, queries, restarts, attack_limit, masking_images: of the attacks, see `mereo.measure.Plan`.
        out: folder for the report and the pictures; by default a temporary one.
        batch_size: images per forward pass.
        device: to run on; with "auto" a network in memory stays where it is.
        seed: of every random choice.
        quiet: print no progress.
        show: called with the name of each part that is finished, and all figures so far.

    evaluation = mereo.evaluate("runs/mspcaps_tiny-photos", corruptions=True)
    evaluation.accuracy; evaluation.models; evaluation.pictures
    """
    check(locals())
    models = list(model) if isinstance(model, list | tuple) else [newest_run() if model is None else model]
    if not models:
        raise UsageError("model is an empty list; give at least one network.")
    plan = Plan(
        corruptions=corruptions, equivariance=equivariance, attacks=tuple(dict.fromkeys(attack)),
        epsilons=tuple(sorted({0.0, *epsilon})), loss=attack_loss, steps=steps, queries=queries, restarts=restarts,
        attack_limit=attack_limit, masking_images=masking_images, batch_size=batch_size, seed=seed,
        couplings=couplings, tta=tta, five_crop=five_crop,
    )  # fmt: skip
    trained = _networks(models, data, data_root=data_root, split=split, limit=limit, device=device, seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="mereo-evaluation-")) if out is None else Path(out)
    report = folder / "report.json"
    # Next to our own report.json the page is ours too.
    own = [report, *([] if report.exists() else [folder / "report.md"])]
    check_outputs("out", own, [network.source for network in trained])

    def keep(document: dict[str, Any]) -> dict[str, Any]:
        document = {"split": split, **document}
        write_atomically(report, json.dumps(document, indent=2) + "\n")
        write_atomically(folder / "report.md", markdown(document))
        return document

    def finished(part: str, document: dict[str, Any]) -> None:
        """Keep the results so far: measurements beyond accuracy may take long."""
        document = keep(document)
        if show is not None:
            show(part, document)

    try:
        document = keep(evaluate_models(trained, plan, folder, Reporter(silent=quiet), finished))
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Evaluation(document, folder, temporary=out is None)


def check(given: Mapping[str, Any]) -> None:
    """UsageError for the first invalid argument of `evaluate`, given by name."""
    check_positive(**{name: given[name] for name in ("batch_size", "steps", "queries", "restarts")})
    check_positive(**{name: given[name] for name in ("limit", "attack_limit") if given[name] is not None})
    check_not_negative(masking_images=given["masking_images"])
    check_seed(given["seed"])
    for epsilon in given["epsilon"]:
        if not (math.isfinite(epsilon) and 0 <= epsilon <= 1):
            raise UsageError(f"epsilon is {epsilon}; it must be between 0 and 1, the range of a pixel.")
    defaults = inspect.signature(evaluate).parameters
    for name in ATTACK_OPTIONS:
        value = given[name]
        if not given["attack"] and value != defaults[name].default:
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise UsageError(f"{name} is {shown}, which only applies to attacks; give one with --attack.")
    if given["out"] is not None and Path(given["out"]).is_file():
        raise UsageError(f"out is {given['out']}, which is a file; it must be a folder.")


def _networks(models: Sequence[Any], data: Any, *, device: str, **chosen: Any) -> list[TrainedModel]:
    """The networks with their images: read by `load_trained_models` if all have files, else here."""
    sources = [model.folder.path if isinstance(model, RunResult) else model for model in models]
    named = None if data is None else str(data)
    if (data is None or isinstance(data, str | Path)) and all(isinstance(source, str | Path) for source in sources):
        return load_trained_models([Path(source) for source in sources], data=named, device=device, **chosen)
    return _in_memory(models, data, device=device, **chosen)


def _in_memory(
    models: Sequence[Any], data: Any, *, data_root: str | None, split: str, limit: int | None, device: str, seed: int
) -> list[TrainedModel]:
    """The networks with their images, if a network or the images are in memory."""
    loaded = [trained_network(model, device) for model in models]
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
            images: Any = _on_arrays(network, data, label)
        else:
            images = read_split(network, config, name, data_root, split)
            images = match_names(images, network, name)
        if limit is not None and limit < len(images):
            images = images.subset(stratified(images.strata, limit, seed)[1])
        placed = place(images, next(network.parameters()).device)
        trained.append(TrainedModel(label, source, network, placed, placed.class_names, name))
    return trained


def _on_arrays(network: VisionModel, data: Any, name: str) -> ImageSet:
    """A pair of images and labels at the size of a network."""
    known = network.class_names or tuple(str(number) for number in range(network.num_classes))
    if task_of(network).outputs_are != "classes":
        images, values = stored_images(data[0]), torch.as_tensor(np.asarray(data[1])).reshape(len(data[1]), -1)
        field = task_of(network).requires[1]
        if values.shape != (len(images), len(known)):
            raise UsageError(
                f"labels have the shape {tuple(values.shape)} for {len(images):,} images; it must be"
                f" ({len(images)}, {len(known)}), with a column for each of {', '.join(known[:5])}."
            )
        kept = values.to(torch.int8 if field == "multi_hot" else torch.float32)
        served = image_set(images, torch.zeros(len(images), dtype=torch.int64), known, network)
        return dataclasses.replace(served, fields={field: kept})
    images, labels = labelled(data)
    return image_set(images, class_numbers(labels, known, name), known, network)
