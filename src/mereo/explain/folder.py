"""All explanations of images as a folder: pictures, parse trees, a page, gradients, pose sweeps."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, check_choice
from mereo.explain.attention_pictures import draw_attention, why_no_attention
from mereo.explain.gradient_pictures import draw_gradients
from mereo.explain.observation import Observation, observe
from mereo.explain.occlusion import occlusion_maps
from mereo.explain.panels import MOST_BARS, colour_scale, draw_image, draw_map, outline, short
from mereo.explain.pictures import MOST_ROWS, draw_explanation
from mereo.explain.places import spread
from mereo.explain.pose_sweeps import pose_sweeps, why_no_sweep
from mereo.explain.sweep_pictures import draw_pose_sweep
from mereo.explain.target import resolve_target
from mereo.explain.trees.growth import parse_trees, why_no_tree
from mereo.explain.trees.page import AddSection, explanation_page
from mereo.explain.trees.pictures import tree_picture
from mereo.explain.trees.tree import ParseTree
from mereo.explain.trees.words import agreement, describe
from mereo.explain.wording import WORDINGS, bars_of, kind_of
from mereo.files import write_atomically
from mereo.inference.predict import class_names
from mereo.models import VisionModel
from mereo.pictures import png_of, row_of_panels, with_palette
from mereo.tasks.explained import Explained

KINDS = ("picture", "gradients", "attention", "page", "trees", "sweeps")


class Shown(NamedTuple):
    """A batch of at most 12 images.

    Attributes:
        names: of the images.
        images: (batch, channels, height, width) in [0, 1].
        labels: the true classes, int64 (batch,), -1 for an unknown one; None if all are unknown.
        large: the images at a multiple of their size, which are shown instead; None to show `images`.
        about: what is explained in place of a class; None to let the task choose.
    """

    names: Sequence[str]
    images: Tensor
    labels: Tensor | None = None
    large: Tensor | None = None
    about: Explained | None = None

    def true(self, n: int) -> int | None:
        """The true class of an image; None if it is not known."""
        label = -1 if self.labels is None else int(self.labels[n])
        return label if label >= 0 else None

    def shown(self, n: int) -> Tensor | None:
        """The larger version of an image."""
        return None if self.large is None else self.large[n]


Batches = Iterable[Shown | tuple[Sequence[str], Tensor]]
"""Batches of images with their names, and labels if known."""
LONGEST = 120
"""Longest part of an image's name in the name of its file, in bytes."""


def why_not(model: VisionModel) -> dict[str, str]:
    """The kinds of explanation that a model cannot give, each with the reason."""
    reasons = {"attention": why_no_attention(model), "trees": why_no_tree(model), "sweeps": why_no_sweep(model)}
    return {kind: reason for kind, reason in reasons.items() if reason is not None}


def file_name(number: int, name: str) -> str:
    """A name for the files of one image: its number, which makes it unique, and the safe characters of its own name."""
    # An accent may be a separate character after its letter, which is not a word character.
    stem = re.sub(r"[^\w-]+", "_", unicodedata.normalize("NFC", Path(name).stem))
    return f"{number:04d}-{stem.encode()[:LONGEST].decode(errors='ignore')}"


def batch_file(folder: Path, kind: str, number: int) -> Path:
    """The picture of one batch of images."""
    suffix = "" if number == 1 else f"-{number}"
    return folder / f"{'explanation' if kind == 'picture' else kind}{suffix}.png"


def index_files(folder: Path, kinds: Sequence[str], batches: int) -> list[Path]:
    """The files that `write_explanations` writes into the folder itself for that many batches of images."""
    pictures = [
        batch_file(folder, kind, n) for kind in ("picture", "gradients") if kind in kinds for n in range(1, batches + 1)
    ]
    return [*pictures, *([folder / "trees.html"] if "page" in kinds else [])]


def write_page(model: VisionModel, batches: Batches, path: str | Path, *, keep: int = 3) -> Path:
    """Write the parse trees of images as one HTML page that needs no other file.

    For a network without routing to its classes the page says so, and shows the effect of hiding each place.

    Args:
        model: any classifier.
        batches: see `Shown`; pairs of names and images in [0, 1], not normalised, are enough.
        path: of the file.
        keep: votes shown for each capsule.
    """
    with explanation_page(path, _heading(model)) as add:
        for batch in batches:
            shown = Shown(*batch)
            observation = observe(model, shown.images, target=shown.about)
            for n, tree in enumerate(_trees(observation, shown, keep)):
                _add_tree(add, tree, shown.names[n], _drawn(tree, shown, n))
            if why_no_tree(observation.model):
                _add_hidden(add, observation, shown)
    return Path(path)


def _drawn(tree: ParseTree, batch: Shown, n: int) -> bytes:
    return tree_picture(tree, batch.images[n], title=batch.names[n], shown=batch.shown(n))


def _trees(observation: Observation, batch: Shown, keep: int) -> list[ParseTree]:
    """The parse trees of a batch; none for a network without them."""
    if why_no_tree(observation.model):
        return []
    return parse_trees(observation, keep=keep, true_labels=batch.labels, images=batch.images)


def _add_tree(add: AddSection, tree: ParseTree, name: str, picture: bytes) -> None:
    """Add the parse tree of an image to a page."""
    words = " ".join(part for part in (describe(tree, 0), agreement(tree)) if part)
    add(name, with_palette(picture), words, [describe(tree, n) for n in range(len(tree.nodes))])


def _add_hidden(add: AddSection, observation: Observation, batch: Shown) -> None:
    """Add a batch to a page for a network without parse trees: for each image, the effect of hiding each place."""
    names = class_names(observation.model)
    chosen = resolve_target(observation.model, observation.scores, batch.about)
    about = chosen if isinstance(chosen, Explained) else None
    drops, grid = occlusion_maps(observation.model, batch.images, chosen)
    heat = spread(drops, grid, *batch.images.shape[-2:]).cpu()
    kind = about.kind if about else kind_of(observation.model)
    bars, one = bars_of(observation.scores, kind), WORDINGS[kind].one
    why = f"{why_no_tree(observation.model)}, so there is no parse tree. Red: hiding the place lowers the {one}."
    for n, name in enumerate(batch.names):
        image, shown = batch.images[n], batch.shown(n)
        figure, panels = row_of_panels(("image", "hidden"), 2.5, 2.8)
        draw_image(panels[0], image if shown is None else shown)
        draw_map(panels[1], image, heat[n], drops[n].cpu(), grid, colour_scale(drops[n].cpu(), signed=True), "+.2f")
        for axes in panels:
            outline(axes, about, n)
        if about is not None:
            add(name, png_of(figure), f"{about.words[n]}. {why}", [about.words[n]])
            continue
        best, true = int(observation.scores[n].argmax()), batch.true(n)
        ranked = bars[n].argsort(descending=True)[:MOST_BARS].tolist()
        scores = [f"{names[c]} {float(bars[n, c]):.2f}{' (true class)' if c == true else ''}" for c in ranked]
        add(name, png_of(figure), f"{names[best]}. {why}", scores)


def write_explanations(
    model: VisionModel,
    batches: Batches,
    folder: str | Path,
    *,
    kinds: Sequence[str] | None = None,
    keep: int = 3,
    target: int | None = None,
) -> dict[str, list[Path]]:
    """Write all explanations of images into a folder, a batch at a time, with the memory of one batch.

    explanation.png, explanation-2.png, ...     lengths, couplings and votes, a picture a batch
    gradients.png, gradients-2.png, ...         input gradients, a picture a batch
    trees.html                                  the parse trees of all images, if there are any
    attention/, trees/, sweeps/                 attention, parse trees and pose sweeps, a picture an image

    Args:
        model: any classifier.
        batches: see `Shown`; pairs of names and images in [0, 1], not normalised, are enough.
        folder: to write into.
        kinds: what to write: "picture", "gradients", "attention", "page", "trees", "sweeps"; all that the network
            supports when None.
        keep: votes shown for each capsule of a tree.
        target: the class that pictures and gradients explain; the predicted one if None.

    Returns the written files by kind.
    """
    reasons, folder, done = why_not(model), Path(folder), 0
    kinds = [kind for kind in KINDS if kind not in reasons] if kinds is None else kinds
    for kind in kinds:
        check_choice("kinds", kind, KINDS)
        if kind in reasons:
            raise UsageError(f"kinds has {kind!r}, which this network does not support: {reasons[kind]}.")
    written: dict[str, list[Path]] = {kind: [] for kind in KINDS if kind in kinds}
    with ExitStack() as stack:
        page = folder / "trees.html"
        add = stack.enter_context(explanation_page(page, _heading(model))) if "page" in kinds else None
        for number, batch in enumerate(batches, start=1):
            shown = Shown(*batch)
            names, images = shown.names, shown.images
            if len(images) > MOST_ROWS:
                raise UsageError(f"batches has one of {len(images)} images; a picture shows at most {MOST_ROWS}.")
            classes = shown.about if target is None else torch.full((len(images),), target)
            if "picture" in kinds:
                path = batch_file(folder, "picture", number)
                drawn = draw_explanation(
                    model, images, path, titles=names, true_labels=shown.labels, classes=classes, shown=shown.large
                )
                written["picture"].append(drawn)
            if "gradients" in kinds:
                path = batch_file(folder, "gradients", number)
                written["gradients"].append(draw_gradients(model, images, path, titles=names, classes=classes))
            files = [file_name(done + n, name) for n, name in enumerate(names, start=1)]
            _write_each(observe(model, images, target=shown.about), shown, files, folder, keep, add, written)
            done += len(images)
    if "page" in kinds:
        written["page"].append(page)
    return written


def _write_each(
    observation: Observation,
    batch: Shown,
    files: Sequence[str],
    folder: Path,
    keep: int,
    add: AddSection | None,
    written: dict[str, list[Path]],
) -> None:
    """The files of a single image."""
    scores, classes, names, images = observation.scores, class_names(observation.model), batch.names, batch.images
    trees = _trees(observation, batch, keep) if {"trees", "page"} & set(written) else []
    for n, tree in enumerate(trees):
        picture = _drawn(tree, batch, n)
        if add is not None:
            _add_tree(add, tree, names[n], picture)
        if "trees" in written:
            written["trees"].append(folder / "trees" / f"{files[n]}.png")
            write_atomically(written["trees"][-1], picture)
    if add is not None and why_no_tree(observation.model):
        _add_hidden(add, observation, batch)
    if "attention" in written:
        for n, name in enumerate(names):
            path = folder / "attention" / f"{files[n]}.png"
            written["attention"].append(draw_attention(observation, images, path, number=n, title=name))
    if "sweeps" in written:
        sweep, word = pose_sweeps(observation), WORDINGS[kind_of(observation.model)].one
        for n, name in enumerate(names):
            moved = int(sweep.explained[n])
            path = draw_pose_sweep(
                sweep.images[n], sweep.offsets, images[n], folder / "sweeps" / f"{files[n]}.png", title=name,
                note=f"capsule of {short(classes[moved])},\n{word} {float(scores[n, moved]):.2f}",
            )  # fmt: skip
            written["sweeps"].append(path)


def _heading(model: VisionModel) -> str:
    model = getattr(model, "_orig_mod", model)
    return f"Explanations of {getattr(model, 'config', {}).get('model', type(model).__name__)}"
