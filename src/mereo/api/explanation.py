"""`mereo.explain`: which parts of an image a prediction rests on."""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mereo.api.display import html_table, png
from mereo.api.images import as_files
from mereo.api.networks import Trained, trained_network
from mereo.data.decode import FORMATS
from mereo.data.regions import scenes_of
from mereo.data.sequence_files import sequences_of
from mereo.errors import MereoError, UsageError, check_positive, type_of, unknown
from mereo.explain import draw_explanation, write_explanations, write_page
from mereo.explain.explanation import Explanation
from mereo.explain.explanation import explain as explain_tensor
from mereo.explain.folder import KINDS, Shown, index_files, why_not
from mereo.explain.observation import normalised
from mereo.explain.pointer_pictures import draw_gazes, draw_pointers
from mereo.explain.saliency import check_saliency, saliency_map
from mereo.explain.saliency.methods import method_of
from mereo.explain.saliency.signals import Layers
from mereo.explain.saliency_pictures import describe_checks, draw_saliency
from mereo.explain.sequence_pictures import draw_sequences
from mereo.explain.target import Target, of_classes
from mereo.files import check_outputs, reading
from mereo.inference.labelled import folder_labels
from mereo.inference.mode import evaluating
from mereo.inference.point_predictions import sets_of
from mereo.inference.predict import answer_files, class_names, find_images, read_good, read_images, task_of
from mereo.models import VisionModel
from mereo.runtime.printing import say
from mereo.runtime.progress import Reporter
from mereo.runtime.text import text_table
from mereo.tasks.explained import Explained, Others
from mereo.training.arguments import typed

Kind = Literal["picture", "gradients", "attention", "page", "trees", "sweeps"]
BATCH = 12
"""Images per batch, and on one picture."""
LARGEST = 256
"""Largest side at which an image is shown, in pixels, unless the network takes larger ones."""
OF_TARGET = ("picture", "gradients")
"""The kinds of output that can explain another class than the predicted one."""
FILES = {".png": "picture", ".html": "page"}
"""The kind of output by the suffix of a file given as `--out`."""
OTHER_FILES = (
    ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".svg", ".pdf", ".eps", ".ps", ".htm", ".json", ".md",
    ".txt", ".csv",
)  # fmt: skip
"""Suffixes of files that explain does not write: `--out` with one of them is a mistake, not the name of a folder."""


class Explanations(Sequence[Explanation]):
    """Explanations of images, a batch of at most 12 at a time: a table when printed, a picture in a notebook.

    Args:
        model: the network.
        batches: images with their names, and their classes where these are known.
        asked: numbers of the classes that are explained, or the function that is; the predicted ones when None.
        written: the files that were written, by kind.
        methods, layers: of the maps `saliency`, by method, (images, height, width); see `mereo.explain.saliency`.
    """

    def __init__(
        self,
        model: VisionModel,
        batches: Sequence[Shown],
        asked: Target | None,
        written: dict[str, list[Path]],
        methods: Sequence[str] = (),
        layers: Layers = None,
    ) -> None:
        self.model, self._batches, self.written = model, batches, written
        self.names = [name for batch in batches for name in batch.names]
        counts = [len(batch.names) for batch in batches]
        self._asked: list[Target | None] = [batch.about if asked is None else asked for batch in batches]
        if isinstance(asked, Tensor):
            self._asked = list(asked.split(counts))
        self._items = [
            explain_tensor(model, batch.images, target=target)
            for batch, target in zip(batches, self._asked, strict=True)
        ]
        pairs = list(zip(batches, self._asked, strict=True))
        self.saliency = {
            method: torch.cat([saliency_map(model, b.images, target, layers, method=method) for b, target in pairs])
            for method in methods
        }

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    @property
    def scores(self) -> Tensor:
        """The scores of the classes, (images, classes)."""
        return torch.cat([item.scores for item in self._items])

    @property
    def classes(self) -> list[str]:
        """The class that is explained for each image, or what else in words; "target" for a function."""
        names, found = [*class_names(self.model), "target"], list[str]()
        for item in self._items:
            found += [names[number] for number in item.explained.tolist()] if item.about is None else item.about.words
        return found

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: image, the class that is explained, its score."""
        rows = zip(self.names, self.classes, torch.cat([item.value for item in self._items]).tolist(), strict=True)
        return ["image", "class", "score"], [[name, label, f"{score:.3f}"] for name, label, score in rows]

    def __str__(self) -> str:
        return text_table(*self.table())

    __repr__ = __str__

    def picture(self, number: int = 0) -> bytes:
        """The picture of one batch as PNG: image, scores, couplings, and which parts voted for the class."""
        batch, asked = self._batches[number], self._asked[number]
        if asked is not None and not isinstance(asked, Tensor | Explained):
            raise UsageError("target is a function, whose scores cannot be drawn; draw occlusion_map.heat.")
        with tempfile.TemporaryDirectory(prefix="mereo-explain-") as folder:
            path = Path(folder) / "explanation.png"
            draw_explanation(
                self.model, batch.images, path, titles=batch.names, true_labels=batch.labels,
                classes=asked, shown=batch.large,
            )  # fmt: skip
            return path.read_bytes()

    def _repr_png_(self) -> bytes | None:
        return None if self._of_function else self.picture()

    @property
    def _of_function(self) -> bool:
        """Whether a function of the caller's is explained, which has no picture."""
        return callable(self._asked[0]) and not isinstance(self._asked[0], Explained)

    def _repr_html_(self) -> str:
        if self._of_function:
            return html_table(*self.table())
        more = f"<p>The first {BATCH} of {len(self.names):,} images.</p>" if len(self) > 1 else ""
        return png(self.picture()) + more + html_table(*self.table())


@typed(weights="it is the first argument, model")
def explain(
    model: Any,
    images: Any,
    *,
    classes: Any = None,
    target: Callable[[Tensor], Tensor] | None = None,
    out: str | Path | None = None,
    only: Sequence[Kind] = (),
    method: str | Sequence[str] = (),
    layers: Sequence[int | str] = (),
    keep: int = 3,
    device: str = "auto",
    strict: bool = False,
) -> Explanations:
    """Explain predictions for images, as `mereo explain` does; files are written only if `out` is given.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network; what `mereo.train` returned; None
            for the newest run.
        images: as for `mereo.predict`.
        classes: name or number of the class to explain, one for all images or one for each; the predicted one when
            None. Of boxes, masks and embeddings one name, as `mereo explain --target` takes it.
        target: in place of a class, a function from the outputs to one number for each image, (batch,), such as the
            mean of a map or the similarity of an embedding.
        out: folder for the files of the command, or a file NAME.png or NAME.html.
        only: which files to write; all that the network supports if it is empty.
        method: names of `mereo.explain.saliency.METHODS`, whose maps are `saliency` of the result; with `out` their
            picture, with checks, is written in place of the other files.
        layers: of these methods, numbers of stages or names of modules; see `mereo.explain.saliency.saliency_map`.
        keep: number of votes, strongest first, shown for each capsule of a parse tree.
        device: to run on; with "auto" a network in memory stays where it is.
        strict: whether an unreadable file is an error.

    mereo.explain("runs/mspcaps_tiny-photos", "holiday/beach.jpg")        # a picture in a notebook
    mereo.explain(model, image)[0].maps["head.coupling"].heat            # (batch, height, width)
    """
    folder = None if out is None else Path(out)
    check(folder, only, keep)
    if target is not None and (classes is not None or out is not None):
        raise UsageError("target is given, and classes or out too; files and classes are of scores. Leave them out.")
    method = (method,) if isinstance(method, str) else method
    if layers and not method:
        raise UsageError(f"layers is {list(layers)}, which is of method; name a method too.")
    if folder is None and only:
        raise UsageError(f"only is {tuple(only)}, which chooses files to write; give out, a folder for them.")
    trained = trained_network(model, device, images=images)
    network = trained.model
    with as_files(images) as files, reading(*files.paths):
        one = classes if isinstance(classes, str | int) else None
        written = {}
        if folder is not None and method:
            picture, _ = write_saliency(trained, files.paths, folder, method, layers or None, only, target=one)
            written = {"saliency": [picture]}
        elif folder is not None:
            written = write(trained, files.paths, folder, only, target=one, keep=keep, strict=strict)
        explained = None if target is not None else _explainer(network, files.paths, classes)
        in_memory = {path.name: path.stem for path in files.held}
        batches = [
            batch._replace(names=[in_memory.get(name, name) for name in batch.names])
            for batch in _read_batches(files.paths, network, strict, explained=explained)
        ]
    count = sum(len(batch.names) for batch in batches)
    asked = _numbers(network, classes, count) if target is None and explained is None else target
    return Explanations(network, batches, asked, written, method, layers or None)


def _numbers(model: VisionModel, classes: Any, count: int) -> Tensor | None:
    """Classes by name or number as int64 (count,); None for None."""
    if classes is None:
        return None
    if isinstance(classes, Mapping) or not isinstance(classes, str | int | Iterable):
        raise UsageError(
            f"classes is {type_of(classes)}; give a name or a number, or a list of them, one for each image."
        )
    given = [classes] * count if isinstance(classes, str | int) else list(classes)
    if len(given) != count:
        raise UsageError(f"classes has {len(given)} entries for {count} images; give one for each, or one for all.")
    known = list(class_names(model))
    if isinstance(classes, str) and classes not in known:  # as it is written on a command line
        given = [classes.removeprefix("class:")] * count
    for each in given:
        if not isinstance(each, str | int | np.integer | Tensor):
            raise UsageError(f"classes has {type_of(each)}; give names or numbers of classes.")
        if isinstance(each, str) and each not in known:
            raise unknown("class", each, known)
    return torch.tensor([known.index(each) if isinstance(each, str) else int(each) for each in given])


Explainer = Callable[[Sequence[Path], Tensor], Explained]
"""From files and their images, (batch, channels, height, width) in [0, 1], to what is explained of them."""


def _explainer(model: VisionModel, paths: Sequence[Path], asked: Any) -> Explainer | None:
    """What the task of a network explains of images; None for scores of classes.

    Args:
        paths: of all images, which are compared with each other if the task compares images.
        asked: name of the target, as on a command line; image:FILE, a file or folder, to compare the images with.
    """
    if model.input_kind != "images" or of_classes(model):
        return None
    task, others = task_of(model), None
    if asked is not None and not isinstance(asked, str):
        raise UsageError(f"classes is {type_of(asked)}, and the task {task.name} takes one name, such as class:NAME.")
    if task.compares:
        if asked is not None and asked.startswith("image:"):
            paths, asked = find_images([asked.removeprefix("image:")]), None
        answered = [each for each in answer_files(model, paths) if each.paths]
        paths = [path for each in answered for path in each.paths]
        vectors = torch.cat([each.outputs for each in answered]) if answered else torch.zeros(0, 1)
        others = Others([path.name for path in paths], vectors, torch.zeros(0))
    places = {path.resolve(): place for place, path in enumerate(paths)}

    def explained(files: Sequence[Path], images: Tensor) -> Explained:
        own = torch.tensor([places.get(path.resolve(), -1) for path in files])
        with evaluating(model), torch.no_grad():
            outputs = model(normalised(model, images))
        about = task.explained(outputs, asked, None if others is None else others._replace(own=own))
        assert about is not None
        if about.nearest is None:
            return about
        return replace(about, beside=read_images([paths[n] for n in about.nearest.tolist()], model)[1])

    return explained


def check(out: Path | None, only: Sequence[str], keep: int) -> None:
    """UsageError for outputs that cannot be written, and for a number below 1."""
    check_positive(keep=keep)
    _single_kind(out, only)


def _single_kind(out: Path | None, only: Sequence[str]) -> str | None:
    """The kind of output if `out` is a file; None for a folder."""
    if out is None or out.is_dir():
        return None
    kind = FILES.get(out.suffix.lower())
    if kind is None and (out.is_file() or out.suffix.lower() in OTHER_FILES):
        raise UsageError(f"out is {out}, a file; give a folder, or a file that ends in .png or .html.")
    if kind is not None and only and set(only) != {kind}:
        raise UsageError(f"out is {out}, which can only hold the {kind}; for {' and '.join(only)} give a folder.")
    return kind


def write(
    trained: Trained,
    paths: list[Path],
    out: Path,
    only: Sequence[str] = (),
    *,
    target: str | int | None = None,
    keep: int = 3,
    strict: bool = False,
    quiet: bool = True,
) -> dict[str, list[Path]]:
    """Write explanations of image files, or of files of points or regions, and return the files by kind.

    Args:
        trained: the network, and its source, a file that must not be overwritten.
        paths: of the images, points or regions.
        out, only, keep, strict: as for `explain`.
        target: name or number of the class that is explained, in pictures and gradients; the predicted one if None.
        quiet: print no progress.
    """
    model, source = trained
    if model.output_kind == "pointers" or model.input_kind == "sequences":
        return _write_picture(trained, paths, out, only, target)
    single, reasons = _single_kind(out, only), why_not(trained.model)
    asked = list(only) if single is None else [single]
    explained, number = _explainer(model, paths, target), None
    if target is not None and explained is None:
        number = int(_numbers(model, target, 1)[0])  # type: ignore[index]
        if others := sorted({*asked} - {*OF_TARGET}):
            raise UsageError(f"target is {target!r}, and only is {others[0]!r}, which is of the predicted class.")
        asked = asked or [*OF_TARGET]
    for kind in asked:
        if kind in reasons:
            raise UsageError(f"only is {kind!r}, which this network does not support: {reasons[kind]}.")
    kinds, batches_of = asked or [kind for kind in KINDS if kind not in reasons], -(-len(paths) // BATCH)
    check_outputs("out", [out] if single else index_files(out, kinds, batches_of), [*paths, source])
    with reading(*paths, source), Reporter(silent=quiet).stage("explained", len(paths)) as done:
        batches = _read_batches(paths, model, strict, done, explained)
        # Images that cannot be read are the first thing that is reported.
        batches = chain([next(batches)], batches)
        for kind, reason in {} if only or single else reasons.items():
            say(f"no {kind}: {reason}", file=sys.stderr)
        if single == "picture":
            first = next(batches)
            chosen = first.about if number is None else torch.full((len(first.images),), number)
            picture = draw_explanation(
                model, first.images, out, titles=first.names, true_labels=first.labels, classes=chosen,
                shown=first.large,
            )  # fmt: skip
            written = {single: [picture]}
        elif single == "page":
            written = {single: [write_page(model, batches, out, keep=keep)]}
        else:
            written = write_explanations(model, batches, out, kinds=kinds, keep=keep, target=number)
    if single == "picture" and len(paths) > BATCH:
        say(f"showing the first {BATCH} of {len(paths)} images; give a folder as --out for all", file=sys.stderr)
    return written


def write_saliency(
    trained: Trained,
    paths: list[Path],
    out: Path,
    methods: Sequence[str],
    layers: Layers = None,
    only: Sequence[str] = (),
    *,
    target: str | int | None = None,
    strict: bool = False,
) -> tuple[Path, list[str]]:
    """Draw maps of saliency of the first 12 images, with checks; return the picture, and a line for each method.

    Args:
        methods: names of `mereo.explain.saliency.METHODS`.
        layers: see `mereo.explain.saliency.saliency_map`.
        trained, paths, out, only, target, strict: as for `write`.
    """
    model, source = trained
    if only or model.input_kind != "images":
        what = f"only is {' '.join(only)}" if only else f"{source} reads {model.input_kind}"
        raise UsageError(f"{what}, and method is {' '.join(methods)}, which draws saliency.png of images; drop one.")
    if _single_kind(out, ()) == "page":
        raise UsageError(f"out is {out}; --method writes a picture: give a folder or a file NAME.png.")
    for method in methods:
        method_of(method)
    picture = out / "saliency.png" if _single_kind(out, ()) is None else out
    check_outputs("out", [picture], [*paths, source])
    with reading(*paths, source):
        explained = _explainer(model, paths, target)
        shown = next(_read_batches(paths, model, strict, explained=explained))
        classes = shown.about if explained else _numbers(model, target, len(shown.images))
        checks = {m: check_saliency(model, shown.images, classes, layers, method=m) for m in methods}
        draw_saliency(model, shown.images, picture, methods, layers, titles=shown.names, classes=classes, checks=checks)
    if len(paths) > BATCH:
        say(f"showing the first {BATCH} of {len(paths)} images", file=sys.stderr)
    return picture, [describe_checks(method, each) for method, each in checks.items()]


def _write_picture(
    trained: Trained, paths: list[Path], out: Path, only: Sequence[str], target: str | int | None
) -> dict[str, list[Path]]:
    """The couplings of a network that points, for files with sets of points or with regions of scenes; for files of
    sequences of joints the gradient of a score."""
    if (single := _single_kind(out, only)) == "page" or set(only) - {"picture"}:
        what = "page" if single == "page" else next(kind for kind in only if kind != "picture")
        reads = f"{trained.source} reads {trained.model.input_kind}"
        raise UsageError(f"only is {what!r}, and {reads}, for which only the picture is drawn.")
    reads = trained.model.input_kind
    if target is not None and reads != "sequences":
        raise UsageError(f"target is {target!r}, and {trained.source} points, without classes; leave it out.")
    picture = out / ("sequences.png" if reads == "sequences" else "pointers.png") if single is None else out
    check_outputs("out", [picture], [*paths, trained.source])
    with reading(*paths, trained.source):
        if reads == "sequences":
            classes = _numbers(trained.model, target, 1)
            chosen = None if classes is None else int(classes)
            return {"picture": [draw_sequences(trained.model, *sequences_of(paths), picture, chosen)]}
        if reads == "regions":
            return {"picture": [draw_gazes(trained.model, scenes_of(paths), picture)]}
        return {"picture": [draw_pointers(trained.model, sets_of(paths), picture)]}


def _enlargement(paths: list[Path], sides: Sequence[int]) -> int:
    """How many times larger than the network's input images are shown; files of few pixels limit it."""
    held = LARGEST
    for path in paths:
        with path.open("rb") as stream, Image.open(stream, formats=FORMATS) as image:
            held = min(held, *image.size)
    return max(min(held // min(sides), LARGEST // max(sides)), 1)


def _read_batches(
    paths: list[Path], model: VisionModel, strict: bool, done: Callable[[int], None] = lambda count: None,
    explained: Explainer | None = None,
) -> Iterator[Shown]:  # fmt: skip
    """Names, images and labels, a batch at a time; unreadable files are named and skipped.

    An image is labelled if its folder has the name of a class.
    """
    device, any_read = next(model.parameters()).device, False
    for start in range(0, len(paths), BATCH):
        chunk = paths[start : start + BATCH]
        try:
            good, images = read_images(chunk, model, strict=strict)
        except MereoError as error:
            if strict or (not any_read and start + BATCH >= len(paths)):
                raise
            warnings.warn(str(error), stacklevel=2)
        else:
            any_read = True
            labels = folder_labels([path.parent for path in good], good, class_names(model))
            times = _enlargement(good, images.shape[-2:])
            large = read_good(good, model, times=times)[0] if times > 1 else None
            if large is not None and len(large) != len(good):  # a file changed in between
                large = None
            images = images.to(device)
            about = None if explained is None else explained(good, images)
            yield Shown([path.name for path in good], images, labels, large, about)
        done(len(chunk))
