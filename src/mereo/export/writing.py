"""Writes a network in its formats: each is loaded again and compared before it replaces an older file."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor

from mereo.errors import MereoError, UsageError
from mereo.export.folder import CARD, CONFIG, WEIGHTS, known_record, load_folder, save_pretrained
from mereo.export.forms import BATCHES, FORMS, Exported, check_forms, file_name
from mereo.export.images import AtHand, normalised, random_inputs, take
from mereo.export.onnx_file import PIXELS, open_onnx, quantise_onnx, write_onnx, write_pixels
from mereo.export.preprocessing import check_pixels
from mereo.export.programs import Scorer, lower, open_program, scorer, write_program
from mereo.export.timm_own import save_for_timm
from mereo.files import cannot_write
from mereo.inference.predict import read_images
from mereo.models import VisionModel
from mereo.runtime import printing
from mereo.surgery.sigma_reparam import SpectralScale, fold
from mereo.training.run_lock import RunLock, is_abandoned

COARSE = 8 * 2**-8
"""In bfloat16 a score has steps of 2^-8, and another order of sums moves it by a few."""


UNCHECKED = ".unchecked-"
"""Prefix of the names of folders with unchecked files."""
OF_ANY_INPUTS = ("torch", "hub")
"""Forms of networks that read something else than images."""
CHECKED_SIZES = ((1, 3), (48, 48), (61, 90), (350, 200))
"""Heights and widths of the images with which a file that takes pixels is compared."""


def open_timm(folder: Path) -> Scorer:
    """The function of the network that timm makes of a folder."""
    import timm

    from mereo.models.timm_entrypoints import register

    register()  # a network may have been added to mereo's catalogue after timm was imported
    return scorer(timm.create_model(f"local-dir:{folder}", pretrained=True).eval())


def differ(score: Scorer, reference: Scorer, images: Sequence[Tensor], what: str) -> float:
    """The largest difference of scores over images in all batch sizes; MereoError for scores that are none.

    Of scores above 1 it is a share of the largest, because float32 rounds them by more.
    """
    largest = 0.0
    for each in images:
        for size in BATCHES:
            for batch in each[: 2 * size].split(size):
                scores, expected = score(batch), reference(batch)
                if scores.shape != expected.shape or not scores.isfinite().all():
                    raise MereoError(f"{what} gives scores of shape {tuple(scores.shape)}, some of them not finite.")
                scale = max(expected.abs().max().item(), 1.0)
                largest = max(largest, (scores - expected).abs().max().item() / scale)
    return largest


def check_inputs(model: VisionModel, forms: Sequence[str], precision: str) -> None:
    """UsageError for a form, or an arithmetic, that only networks of images have."""
    if model.input_kind == "images":
        return
    able = (*OF_ANY_INPUTS, *(("onnx",) if model.input_kind == "sequences" else ()))
    others = [form for form in forms if form not in able]
    if others or precision != "fp32":
        value = f"to is {others[0]!r}" if others else f"precision is {precision!r}"
        raise UsageError(
            f"{value}, which is for networks of images, and this one reads {model.input_kind}; give"
            f" --to {' '.join(able)}, and no precision."
        )


def pixels_differ(score: Scorer, model: VisionModel) -> float:
    """The largest difference between the scores for pixels and the scores of `mereo predict` for files of them."""
    generator, largest = torch.Generator().manual_seed(0), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, (height, width) in enumerate(CHECKED_SIZES):
            pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
            path = Path(folder) / f"{number}.png"
            Image.fromarray(pixels.numpy()).save(path)
            expected = scorer(model)(normalised(read_images([path], model)[1], model))
            largest = max(largest, (score(pixels.unsqueeze(0)) - expected).abs().max().item())
    return largest


def export_model(
    model: VisionModel,
    forms: Sequence[str],
    out: Path,
    *,
    precision: str = "fp32",
    record: Mapping[str, Any] | None = None,
    images: AtHand | None = None,
    say: Callable[[str], None] = printing.say,
) -> list[Exported]:
    """Write a network in some forms, each opened again and compared; MereoError for one that differs.

    A network of `sigma_reparam` is folded: files hold the weights that it computes with.

    Args:
        model: on the CPU, in eval mode.
        forms: of `FORMS`.
        out: folder; other files in it are kept.
        precision: arithmetic of the files.
        record: of the run that made the weights, see `save_pretrained`.
        images: of its data; int8 ONNX needs them.
    """
    forms = tuple(dict.fromkeys(forms))
    check_forms(forms, precision)
    check_inputs(model, forms, precision)
    if "onnx" in forms and precision == "int8" and images is None:
        raise UsageError("precision is int8, and ONNX takes the ranges of activations from training images; give data.")
    if "timm" in forms and model.as_timm_network() is not None and "hub" in forms:
        raise UsageError("to is hub and timm, whose files of this network differ; give each a folder of its own.")
    if "pixels" in forms:
        check_pixels(model)
    if any(isinstance(module, SpectralScale) for module in model.modules()):
        say("folding the layers of sigma_reparam to plain weights; train on with the weights of the run")
        model = cast(VisionModel, fold(model, steps=0))
    known = known_record(model, record)
    notes = {
        **model.config, "pretrained_cfg": model.pretrained_cfg, "class_names": list(model.class_names),
        "precision": precision, **known,
    }  # fmt: skip
    shown = [random_inputs(model, 2 * max(BATCHES))]
    if images is not None:
        shown.append(take(model, images.test, 2 * max(BATCHES)))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error
    written = []
    with _apart(out) as folder:
        for place, form in enumerate(forms, start=1):
            say(f"{place}/{len(forms)} {form}: writing and comparing")
            files, score, difference = _write(model, form, folder, precision, known, notes, shown, images)
            written.append((form, files, score, difference))
        for _, files, _, _ in written:
            for file in files:
                if (folder / file).exists():
                    (folder / file).replace(out / file)
    what = "random" if images is None else f"random, {images.name} test"
    return [
        Exported(form, precision, out / file_name(form, precision), files, difference, BATCHES, what, score)
        for form, files, score, difference in written
    ]


@contextmanager
def _apart(out: Path) -> Iterator[Path]:
    """A folder in `out` for unchecked files, under their final names; removes leftovers of killed exports."""
    for leftover in out.glob(f"{UNCHECKED}*"):
        if is_abandoned(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=UNCHECKED) as apart:
        lock = RunLock(Path(apart))
        try:
            yield Path(apart) / out.resolve().name
        finally:
            lock.release()


def _write(
    model: VisionModel,
    form: str,
    folder: Path,
    precision: str,
    record: Mapping[str, Any],
    notes: Mapping[str, Any],
    shown: Sequence[Tensor],
    images: AtHand | None,
) -> tuple[tuple[str, ...], Scorer, float]:
    path = folder / file_name(form, precision)
    files: tuple[str, ...] = (path.name,)
    own = scorer(model)
    limit, reference = FORMS[form].limit, own
    if form == "torch":
        lowered = lower(model, precision)
        write_program(lowered, shown[0], path, notes)
        score, reference = open_program(path), scorer(lowered)
        if precision == "bf16":
            limit = COARSE
    elif form == "onnx":
        write_onnx(model, path, notes)
        if precision == "int8" and images is not None:
            quantise_onnx(path, path, images.training)
            limit = float("inf")  # its cost is measured on the test images
        score = open_onnx(path, model.input_kind)
    elif form == "pixels":
        write_pixels(model, path, notes)
        score = open_onnx(path, PIXELS)
        if (apart := pixels_differ(score, model)) > limit:
            raise MereoError(f"the scores of pixels differ from the network's by up to {apart:.2g}; not written.")
        return files, score, apart
    elif form == "timm" and (theirs := model.as_timm_network()) is not None:
        files = (CONFIG, WEIGHTS)
        save_for_timm(theirs, folder)
        score = open_timm(folder)
    else:
        files = (CONFIG, WEIGHTS, CARD) if form == "hub" else (CONFIG, WEIGHTS)
        save_pretrained(model, folder, record=record, card=form == "hub" or (folder / CARD).exists())
        score = scorer(load_folder(folder)) if form == "hub" else open_timm(folder)
    if (apart := differ(score, reference, shown, f"--to {form}")) > limit:
        raise MereoError(
            f"--to {form} differs from the network by up to {apart:.2g}, more than {limit:.0e}; not written."
        )
    return files, score, differ(score, own, shown, f"--to {form}")
