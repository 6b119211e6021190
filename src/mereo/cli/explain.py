"""`mereo explain`."""

import sys
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.cli.options import ExplainOptions
from mereo.cli.parse import parse
from mereo.cli.weights import load_weights, warn_if_out_of_distribution
from mereo.errors import MereoError, UsageError, check_positive
from mereo.files import check_outputs, reading
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mereo.explain.folder import Shown
    from mereo.models import VisionModel
    from mereo.runtime.progress import Reporter

BATCH = 12
"""Images per batch, and on one picture."""
LARGEST = 256
"""Largest side at which an image is shown, in pixels, unless the network takes larger ones."""
FILES = {".png": "picture", ".html": "page"}
"""The kind of output by the suffix of a file given as `--out`."""
OTHER_FILES = (
    ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".svg", ".pdf", ".eps", ".ps", ".htm", ".json", ".md",
    ".txt", ".csv",
)  # fmt: skip
"""Suffixes of files that explain does not write: `--out` with one of them is a mistake, not the name of a folder."""


def new_folder() -> Path:
    """The first of explanation, explanation-2, ... that does not exist."""
    number = 1
    while (folder := Path("explanation" if number == 1 else f"explanation-{number}")).exists():
        number += 1
    return folder


def single_kind(options: ExplainOptions) -> str | None:
    """The kind of output if `--out` is a file; None for a folder."""
    if options.out is None or options.out.is_dir():
        return None
    kind = FILES.get(options.out.suffix.lower())
    if kind is None and (options.out.is_file() or options.out.suffix.lower() in OTHER_FILES):
        raise UsageError(f"out is {options.out}, a file; give a folder, or a file that ends in .png or .html.")
    if kind is not None and options.only and set(options.only) != {kind}:
        raise UsageError(
            f"out is {options.out}, which can only hold the {kind}; for {' and '.join(options.only)} give a folder."
        )
    return kind


def wanted_kinds(options: ExplainOptions, model: "VisionModel") -> list[str]:
    """The kinds to write: those that were asked for, or all that the model can give."""
    from mereo.explain.folder import KINDS, why_not

    single, reasons = single_kind(options), why_not(model)
    asked: list[str] = list(options.only) if single is None else [single]
    for kind in asked:
        if kind in reasons:
            raise UsageError(f"only is {kind!r}, which this network does not support: {reasons[kind]}.")
    return asked or [kind for kind in KINDS if kind not in reasons]


def enlargement(paths: list[Path], sides: "Sequence[int]") -> int:
    """The factor by which images are shown larger than the network's input; files of few pixels limit it."""
    from PIL import Image

    from mereo.data.decode import FORMATS

    held = LARGEST
    for path in paths:
        with path.open("rb") as stream, Image.open(stream, formats=FORMATS) as image:
            held = min(held, *image.size)
    return max(min(held // min(sides), LARGEST // max(sides)), 1)


def read_batches(
    paths: list[Path], model: "VisionModel", strict: bool, done: "Callable[[int], None]"
) -> "Iterator[Shown]":
    """Names, images and labels, a batch at a time; unreadable files are named and skipped.

    An image is labelled if its folder has the name of a class.
    """
    from mereo.explain.folder import Shown
    from mereo.inference.labelled import folder_labels
    from mereo.inference.predict import class_names, read_good, read_images

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
            times = enlargement(good, images.shape[-2:])
            large = read_good(good, model, times=times)[0] if times > 1 else None
            if large is not None and len(large) != len(good):  # a file changed in between
                large = None
            yield Shown([path.name for path in good], images.to(device), labels, large)
        done(len(chunk))


def run(words: list[str], command: str) -> None:
    """Write explanations of images and print their paths."""
    options = parse(ExplainOptions, words, command)
    check_positive(keep=options.keep)
    single_kind(options)
    from mereo.inference.predict import find_images
    from mereo.runtime.progress import Reporter

    paths = find_images(options.images)
    model, source = load_weights(options.weights, options.device, ready=True)
    if options.weights is None:
        say(f"using {source}", file=sys.stderr)
    warn_if_out_of_distribution(model, source, paths, chosen=options.weights is None)
    for kind, files in write(options, model, paths, source, Reporter()).items():
        if len(files) > BATCH:
            say(f"{kind}: {files[0].parent}/ ({len(files)} files)")
        else:
            say("\n".join(f"{kind}: {path}" for path in files))


def write(
    options: ExplainOptions, model: "VisionModel", paths: list[Path], source: Path, reporter: "Reporter"
) -> dict[str, list[Path]]:
    """Write explanations of image files and return the files by kind.

    Args:
        options: what to write, and where.
        model: from `source`, a file that must not be overwritten.
        paths: of the images.
        reporter: shows the progress.
    """
    from mereo.explain import draw_explanation, write_explanations, write_page
    from mereo.explain.folder import index_files, why_not

    kinds, single, out = wanted_kinds(options, model), single_kind(options), options.out or new_folder()
    batches_of = -(-len(paths) // BATCH)
    check_outputs("out", [out] if single else index_files(out, kinds, batches_of), [*paths, source])
    with reading(*paths, source), reporter.stage("explained", len(paths)) as done:
        batches = read_batches(paths, model, options.strict, done)
        # Images that cannot be read are the first thing that is reported.
        batches = chain([next(batches)], batches)
        for kind, reason in {} if options.only or single else why_not(model).items():
            say(f"no {kind}: {reason}", file=sys.stderr)
        if single == "picture":
            first = next(batches)
            picture = draw_explanation(
                model, first.images, out, titles=first.names, true_labels=first.labels, shown=first.large
            )
            written = {single: [picture]}
        elif single == "page":
            written = {single: [write_page(model, batches, out, keep=options.keep)]}
        else:
            written = write_explanations(model, batches, out, kinds=kinds, keep=options.keep)
    if single == "picture" and len(paths) > BATCH:
        say(f"showing the first {BATCH} of {len(paths)} images; give a folder as --out for all", file=sys.stderr)
    return written
