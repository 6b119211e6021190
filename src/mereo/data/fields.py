"""Fields that a stored set holds beside images and labels: masks, boxes, tokens, pairs."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mereo.errors import UsageError, unknown

# Of each field: its kind of numbers, and the axes behind the first.
FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "masks": ("signed whole", ("height", "width")),
    "boxes": ("floating", ("most", "4")),
    "box_labels": ("signed whole", ("most",)),
    "tokens": ("signed whole", ("length",)),
    "lengths": ("signed whole", ()),
    "pairs": ("signed whole", ()),
}
_TOGETHER = (("boxes", "box_labels"), ("lengths", "tokens"))


def _is(kind: str, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point == (kind == "floating") and dtype.is_signed and not dtype.is_complex


def check_fields(fields: Mapping[str, Tensor], count: int, size: tuple[int, int]) -> None:
    """Raise `UsageError` unless the fields fit `count` images of (height, width), and each other."""
    known = {"height": size[0], "width": size[1], "4": 4}
    for name, values in fields.items():
        if name not in FIELDS:
            raise unknown("field", name, FIELDS)
        kind, axes = FIELDS[name]
        wanted = (count, *(known.get(axis) for axis in axes))
        fits = values.dim() == len(wanted) and all(
            side is None or side == length for side, length in zip(wanted, values.shape, strict=True)
        )
        if not (fits and _is(kind, values.dtype)):
            form = ", ".join([str(count), *(str(known.get(axis, axis)) for axis in axes)])
            raise UsageError(
                f"{name} is {values.dtype} of shape {tuple(values.shape)}; it must hold {kind} numbers, in the shape "
                f"({form})."
            )
        for axis, length in zip(axes, values.shape[1:], strict=True):
            known.setdefault(axis, length)
    for one, other in _TOGETHER:
        if one in fields and other not in fields:
            raise UsageError(f"{one} is given without {other}; give both.")


def as_served(name: str, values: Tensor) -> Tensor:
    """The type in which a batch holds a field."""
    return values.float() if FIELDS[name][0] == "floating" else values.long()
