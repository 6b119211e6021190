"""The trained networks of an evaluation, and the images they are evaluated on."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mereo.data import Images, ImageSet, data_root, dataset_info, load_split
from mereo.data.layout_options import LayoutOptions
from mereo.data.sequences import Sequences
from mereo.data.sets import is_dataset
from mereo.data.split import stratified
from mereo.data.stream.hub import PREFIX
from mereo.errors import UsageError
from mereo.escape import cut
from mereo.inference.footprint import check_runs
from mereo.inference.predict import task_of
from mereo.models import VisionModel, load
from mereo.runtime.device import choose_device
from mereo.tasks import Task
from mereo.training.config import TrainConfig
from mereo.training.fingerprints import recorded_images
from mereo.training.run_folder import RunFolder
from mereo.training.setup import place

SPLITS = ("test", "validation", "train")


@dataclass(frozen=True)
class TrainedModel:
    """One network and the images it is evaluated on.

    Attributes:
        name: short and unique.
        source: file or folder of its weights.
        model: on its device.
        split: images of one label each, or of several, with labels in the order of the model's classes.
        class_names: of the scores, in order: the model's, or the names in the data if it has none.
        data: name of the data set.
    """

    name: str
    source: Path
    model: VisionModel
    split: Images
    class_names: tuple[str, ...]
    data: str

    @property
    def task(self) -> Task:
        """What it was trained for."""
        return task_of(self.model)


def run_config(source: Path) -> TrainConfig | None:
    """The configuration of the run that wrote the weights; None if there is none next to them."""
    folder = source if source.is_dir() else source.parent.parent
    path = folder / "config.yaml"
    return TrainConfig.from_yaml(path) if path.is_file() else None


def short_names(sources: Sequence[Path]) -> list[str]:
    """Unique names: of the run's folder, else of the file or the weights; numbered if several are equal."""
    stems = []
    for source in sources:
        path = source.resolve()
        in_run = path.is_file() and path.parent.name == "weights"
        run = path.parent.parent.name
        if in_run:
            stems.append(run if path.stem == "best" else f"{run}-{path.stem}")
        else:
            # A name that is no file is a bundled checkpoint, whose tag looks like a suffix: mspcaps_tiny.mnist.
            stems.append(path.stem if path.is_file() else path.name)
    named: list[str] = []
    for stem in stems:
        number = next(n for n in range(1, len(stems) + 1) if (stem if n == 1 else f"{stem}-{n}") not in named)
        named.append(stem if number == 1 else f"{stem}-{number}")
    return named


def _may_hold_images(data: str) -> bool:
    """Whether a path may be read because the configuration of a run names it: not a whole disk, nor a folder that
    holds the working folder or the home folder."""
    if data.startswith(PREFIX):
        return True
    path = Path(data).resolve()
    return not any(place.resolve().is_relative_to(path) for place in (Path.cwd(), Path.home())) and not path.is_mount()


def images_of_run(model: VisionModel, source: Path) -> str | None:
    """The folder or file of images that a run was trained on, if its configuration names one that is there."""
    config = run_config(source)
    if config is None or model.metadata.get("data") != config.data or is_dataset(config.data):
        return None
    return config.data if Path(config.data).exists() and _may_hold_images(config.data) else None


def choose_data(models: Sequence[VisionModel], configs: Sequence[TrainConfig | None], data: str | None) -> str:
    """The data set to evaluate on: the one given, else the one that all were trained on.

    The data stated in a weight file is used only if it is the name of a data set: a path would let a file choose which
    folders of this machine are read. The configuration of a run folder may name a folder or file of images.
    """
    if data is not None:
        return data
    trained = [
        model.metadata.get("data") or (None if config is None else config.data)
        for model, config in zip(models, configs, strict=True)
    ]
    if None in trained:
        raise UsageError("data is not given, and the weights do not name the data they were trained on; give --data.")
    kinds = sorted({str(name) for name in trained})
    if len(kinds) > 1:
        listed = cut(" and ".join(kinds), 200)
        raise UsageError(f"data is not given, and the networks were trained on {listed}; name one with --data.")
    of_runs = all(config is not None and config.data == kinds[0] for config in configs)
    if not is_dataset(kinds[0]) and not (of_runs and _may_hold_images(kinds[0])):
        raise UsageError(
            f"data is not given, and the weights were trained on {cut(kinds[0], 100)!r}, which is not a registered"
            " data set; if you trust it, give it with --data."
        )
    return kinds[0]


def match_classes(split: Images, model: VisionModel, data: str) -> Images:
    """The split with its labels in the order of the model's classes; UsageError if it has others."""
    known, given = model.class_names, split.class_names
    if not known and len(given) == model.num_classes:
        return split
    if not known or not set(given) <= set(known):
        foreign = ", ".join([name for name in given if name not in known][:5]) if known else f"{len(given)} classes"
        listed = f" ({', '.join(known[:5])}{' ...' if len(known) > 5 else ''})" if known else ""
        raise UsageError(
            f"data is {data!r}, with {foreign}, which the model of {model.num_classes} classes does not have"
            f"{listed}; give data of its classes."
        )
    if given == known:
        return split
    places = torch.tensor([known.index(name) for name in given])
    if isinstance(split, Sequences):
        return split.relabelled(places, known)
    if not isinstance(split, ImageSet):
        raise UsageError(f"data is {data!r}, whose classes the model has in another order; give images of one object.")
    return ImageSet(split.images, places.to(split.labels.device)[split.labels], known)


def match_names(split: Images, model: VisionModel, data: str) -> Images:
    """The split with its classes in the order of the model's; UsageError for classes or masks that it does not have."""
    task = task_of(model)
    if task.scores_classes:
        return match_classes(split, model, data)
    known, given = model.class_names, split.class_names
    if "masks" in task.requires and known and given != known[: len(given)]:
        raise UsageError(
            f"data is {data!r}, with the classes {', '.join(given[:5])}, and the model makes masks of"
            f" {', '.join(known[:5])}; give masks of its classes."
        )
    return split


def _resolved(data: str, root: str | None) -> Path:
    """The real path of data: relative to the working folder, or else to the root."""
    return (Path(data) if Path(data).exists() else data_root(root) / data).resolve()


def is_own(config: TrainConfig | None, data: str, root: str | None) -> bool:
    """Whether a run was trained on this data, even if its path is written in another way."""
    if config is None or is_dataset(config.data) or is_dataset(data):
        return config is not None and config.data == data
    if PREFIX in (config.data[: len(PREFIX)], data[: len(PREFIX)]):
        return config.data == data
    return _resolved(config.data, config.data_root) == _resolved(data, root)


def read_split(model: VisionModel, config: TrainConfig | None, data: str, root: str | None, split: str) -> Images:
    """One split of a data set at a model's size. The validation images are those held out in its training.

    Of data that the run was not trained on, all images are test images if it has no splits.
    """
    of_images = model.input_kind == "images"
    # Weights without their run do not record which images were held out.
    config = config or TrainConfig(validation_fraction=0.0)
    own = is_own(config, data, root)
    if split == "validation" and own and config.paper_protocol:
        raise UsageError("split is 'validation', but the run held out none (paper_protocol); use test.")
    return load_split(
        data,
        "whole" if split == "test" and not own and of_images else split,
        root=root if root is not None else config.data_root,
        img_size=model.image_shape[1:] if of_images else None,
        length=None if of_images else model.input_shape[0],
        in_chans=model.image_shape[0] if of_images else None,
        crop_pct=model.pretrained_cfg["crop_pct"] if of_images else 1.0,
        # The test images do not depend on it, and a class of one image has none to hold out.
        validation_fraction=0.0 if split == "test" else config.validation_fraction,
        seed=config.seed,
        limit=config.limit if own else None,
        info=None
        if of_images
        else dataset_info(
            data, root or config.data_root, inputs=model.input_kind, options=config.layout if own else None
        ),
        unseen=task_of(model).unseen_classes,
        options=task_of(model).read_as(config.layout if own else LayoutOptions()),
    )


def without_recorded_images(
    images: Images,
    model: VisionModel,
    source: Path,
    config: TrainConfig | None,
    data: str,
    root: str | None,
    split: str,
) -> Images:
    """The images of a test split that the run was not trained on, and did not choose its epoch by; a warning gives the
    number of the others. In the run's own data, on whose test images it was evaluated, these are only counted."""
    if split != "test" or images.serves != "images":
        return images
    trained_on = recorded_images(source, images, model.image_shape[1:])
    count = int(trained_on.sum())
    if not count:
        return images
    if is_own(config, data, root):
        warnings.warn(
            f"{count} of the {len(images)} test images of {data} equal training images of {source}.", stacklevel=3
        )
        return images
    if count == len(images):
        raise UsageError(
            f"data is {data!r}, and {source} was trained on all of its {count} images, or chose its epoch by them; give"
            " other images, or evaluate the run without --data."
        )
    warnings.warn(
        f"{source} was trained on {count} of the {len(images)} images of {data}, or chose its epoch by them; they are"
        " left out.",
        stacklevel=3,
    )
    return images.subset((~trained_on).nonzero().flatten())


def load_trained_models(
    sources: Sequence[Path],
    *,
    data: str | None = None,
    data_root: str | None = None,
    split: str = "test",
    limit: int | None = None,
    device: str = "auto",
    seed: int = 0,
) -> list[TrainedModel]:
    """Load networks and the images to evaluate them on.

    Args:
        sources: files of weights or folders of runs.
        data: name or folder of the data; the data they were trained on when None.
        data_root: folder of the data sets; by default the folder that the run used, MEREO_DATA, or ./data.
        split: "test", "validation" or "train".
        limit: largest number of images, with classes in proportion.
        device: of the networks.
        seed: of the choice of images.
    """
    chosen = choose_device(device)
    models = [load(source, chosen) for source in sources]
    configs = [run_config(source) for source in sources]
    name = choose_data(models, configs, data)
    trained: list[TrainedModel] = []
    read: dict[Any, Images] = {}
    for label, source, model, config in zip(short_names(sources), sources, models, configs, strict=True):
        if model.headless:
            raise UsageError(f"{source} has no scores (num_classes is 0); there is nothing to evaluate.")
        check_runs(model, source)
        held = (
            (config.seed, config.validation_fraction, config.limit) if config is not None and split != "test" else None
        )
        # Runs have different training images, which are removed from the split, so it is read again for each run.
        own_images = (
            (source,) if RunFolder(source if source.is_dir() else source.parent.parent).fingerprints.is_file() else ()
        )
        key = (model.pretrained_cfg["input_size"], model.pretrained_cfg.get("crop_pct"), held, *own_images)
        if key not in read:
            images = read_split(model, config, name, data_root, split)
            images = without_recorded_images(images, model, source, config, name, data_root, split)
            if limit is not None and limit < len(images):
                images = images.subset(stratified(images.strata, limit, seed)[1])
            read[key] = images
        matched = match_names(read[key], model, name)
        placed = place(matched, chosen)
        trained.append(TrainedModel(label, source, model, placed, placed.class_names, name))
    return trained
