"""The export formats: what each needs, its tolerance, and the facts about a written one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mereo.errors import UsageError, check_choice
from mereo.export.folder import CARD, CONFIG, WEIGHTS
from mereo.export.programs import Scorer
from mereo.runtime.libraries import require

BATCHES = (1, 2, 7)
"""Batch sizes that every format is tested with."""


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
        libraries: that it needs, and the extra of the package that brings them.
        limit: largest allowed difference of a score from the network's in float32, relative to scores above 1.
        precisions: that it can hold.
    """

    libraries: tuple[str, ...]
    extra: str
    limit: float
    precisions: tuple[str, ...]


FORMS: dict[str, Form] = {
    "onnx": Form(("onnx", "onnxscript", "onnxruntime"), "export", 1e-4, ("fp32", "int8")),
    "pixels": Form(("onnx", "onnxscript", "onnxruntime"), "export", 1e-4, ("fp32",)),
    "torch": Form((), "", 1e-5, ("fp32", "bf16", "int8")),
    "timm": Form(("timm",), "timm", 1e-5, ("fp32",)),
    "hub": Form((), "", 1e-5, ("fp32",)),
}


@dataclass(frozen=True)
class Exported:
    """One form that was written and checked.

    Attributes:
        form, precision: of the export.
        path: of its file; of its weights if it has several.
        files: all of its files.
        difference: the largest of a score from the float32 network's, relative to scores above 1.
        batches: batch sizes tried.
        images: a description of the test inputs.
        score: the function read back from the file.
    """

    form: str
    precision: str
    path: Path
    files: tuple[str, ...]
    difference: float
    batches: tuple[int, ...]
    images: str
    score: Scorer

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "form": self.form, "precision": self.precision, "files": [str(self.path.parent / f) for f in self.files],
            "bytes": self.size, "largest_difference": self.difference, "batch_sizes": list(self.batches),
            "images": self.images,
        }  # fmt: skip


def check_forms(forms: Sequence[str], precision: str) -> None:
    """UsageError for a format that cannot be written here, before any is written."""
    if not forms:
        raise UsageError(f"to is empty; it must name some of {', '.join(FORMS)}.")
    for form in forms:
        check_choice("to", form, FORMS)
        if precision not in FORMS[form].precisions:
            able = ", ".join(name for name, each in FORMS.items() if precision in each.precisions)
            raise UsageError(
                f"precision is {precision!r}, which --to {form} does not support; it is available for {able}."
            )
        require(f"--to {form}", FORMS[form].libraries, FORMS[form].extra)


def output_files(forms: Sequence[str], precision: str, folder: Path) -> list[Path]:
    """Every file that some forms write into a folder."""
    names = dict.fromkeys(file_name(form, precision) for form in forms)
    if {"hub", "timm"} & set(forms):
        names |= dict.fromkeys((CONFIG, WEIGHTS))
    if "hub" in forms:
        names |= dict.fromkeys([CARD])
    return [folder / name for name in names]


def file_name(form: str, precision: str) -> str:
    """The path of a format in its folder."""
    suffix = {"onnx": "onnx", "pixels": "pixels.onnx", "torch": "pt2"}.get(form)
    if suffix is None:
        return WEIGHTS
    return f"model.{suffix}" if precision == "fp32" else f"model.{precision}.{suffix}"
