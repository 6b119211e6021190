"""Predictions of a trained network for image files."""

import glob
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from mereo.data import Batch, ImageSet, load_size
from mereo.data.decode import decode
from mereo.errors import MereoError, UsageError
from mereo.inference.evaluate import prepare_batch
from mereo.models import VisionModel
from mereo.models.folding import folded
from mereo.tasks import Classification, Task, get_task

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image, as its task describes it: for a classifier the class and its scores.

    Attributes:
        path: of the image.
        values: plain values by name.
    """

    path: Path
    values: dict[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of a classifier, the highest score first."""
        return tuple(self.values["scores"])

    @property
    def scores(self) -> tuple[float, ...]:
        """The scores of `classes`."""
        return tuple(self.values["scores"].values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"path": str(self.path), **self.values}


def find_images(patterns: Sequence[str | Path]) -> list[Path]:
    """The files of paths, folders (searched at any depth for image suffixes) and globs, each once, in order."""
    listed: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not files:
                raise UsageError(f"{path} has no images ({', '.join(sorted(SUFFIXES))}).")
        elif path.is_file():
            files = [path]
        else:
            files = [Path(p) for p in sorted(glob.glob(str(pattern), recursive=True)) if Path(p).is_file()]  # noqa: PTH207
            if not files:
                raise UsageError(f"{pattern} is not a file, not a folder, and as a pattern matches nothing.")
        listed.update(dict.fromkeys(files))
    if not listed:
        raise UsageError("no image is given; give files, folders or patterns.")
    return list(listed)


def read_images(paths: Iterable[Path], model: VisionModel, *, strict: bool = False) -> tuple[list[Path], Tensor]:
    """Images as a model was trained to see them, before normalisation.

    Unreadable files are named in a warning and skipped; `strict` makes the first of them an error.

    Shapes: -> the paths read, and (images, channels, height, width) in [0, 1].
    """
    from PIL import Image

    channels, height, width = model.image_shape
    if channels not in (1, 2, 3):
        raise UsageError(
            f"the model takes {channels} channels; image files give 1 or 3, or 2 as pictures side by side."
        )
    size = load_size((height, width), model.pretrained_cfg["crop_pct"])
    good, pixels, broken = [], [], []
    for path in paths:
        try:
            with warnings.catch_warnings(), path.open("rb") as stream:
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                pixels.append(torch.from_numpy(decode(stream, size, channels).copy()))
                good.append(path)
        except Exception as error:  # a broken file can make a decoder raise nearly anything
            reason = (
                "not an image"
                if "cannot identify" in str(error)
                else (str(error).splitlines() or [type(error).__name__])[0]
            )
            broken.append(f"{path} ({reason})")
            if strict:
                raise MereoError(f"cannot read {broken[0]}; repair it, or leave out --strict.") from error
    if broken:
        shown = "; ".join(broken[:10]) + (f"; and {len(broken) - 10} more" if len(broken) > 10 else "")
        if not good:
            raise MereoError(f"none of {len(broken)} files could be read as an image: {shown}.")
        count = "1 file" if len(broken) == 1 else f"{len(broken)} files"
        warnings.warn(f"{count} could not be read as images and were skipped: {shown}.", stacklevel=2)
    stored = ImageSet(torch.stack(pixels), torch.zeros(len(good), dtype=torch.int64), ("",))
    return good, stored.batch(torch.arange(len(good)), crop=(height, width)).images


def class_names(model: VisionModel) -> tuple[str, ...]:
    """Names of a model's classes; their numbers where it carries none."""
    return model.class_names or tuple(str(i) for i in range(model.num_classes))


def task_of(model: VisionModel) -> Task:
    """The task that a model was trained for; classification where its weights name none."""
    return get_task(str(model.metadata.get("task", Classification.name)))(class_names(model))


def predict(
    model: VisionModel,
    paths: Sequence[Path],
    *,
    top: int = 3,
    batch_size: int = 64,
    strict: bool = False,
) -> Iterator[Prediction]:
    """Predictions for image files, in their order, a batch at a time.

    The task is the one that the model was trained for; classification if its weights name none.
    """
    task, cfg = task_of(model), model.pretrained_cfg
    device = next(model.parameters()).device
    model = folded(model)
    for start in range(0, len(paths), batch_size):
        good, images = read_images(paths[start : start + batch_size], model, strict=strict)
        with torch.inference_mode():
            batch = Batch(images.to(device), torch.zeros(len(good), dtype=torch.int64, device=device))
            outputs = task.apply(model, prepare_batch(batch, cfg))
            outputs = tree_map_only(Tensor, lambda x: x.float() if x.is_floating_point() else x, outputs)
        if not all(bool(x.isfinite().all()) for x in tree_leaves(outputs) if isinstance(x, Tensor)):
            raise MereoError("the outputs of the network are not finite; its weights are damaged.")
        for path, values in zip(good, task.predict(outputs, top), strict=True):
            yield Prediction(path, values)
