"""Further fields of a stored set besides images and labels: masks, boxes, tokens, pairs, several labels, numbers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mereo.data.conversion import fit_box
from mereo.data.decode import VOID, nearest_places
from mereo.data.motion import IGNORED, clip_boxes
from mereo.errors import UsageError, unknown

# The type of each field, and its axes after the first.
FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "masks": ("signed whole", ("height", "width")),
    "boxes": ("floating", ("most", "4")),
    "box_labels": ("signed whole", ("most",)),
    "tokens": ("signed whole", ("length",)),
    "lengths": ("signed whole", ()),
    "pairs": ("signed whole", ()),
    "multi_hot": ("signed whole", ("classes",)),
    "values": ("floating", ("columns",)),
    "attributes": ("signed whole", ("attributes",)),
}
_IN_WORDS = {
    "masks": "masks of the images",
    "multi_hot": "several labels of an image, such as a table with beach;sunset in a cell",
    "values": "numbers of each image, such as a table with --label-column and the name of their column",
    "attributes": "values of attributes of each image",
}
_TOGETHER = (("boxes", "box_labels"), ("lengths", "tokens"))


def field_in_words(field: str) -> str:
    """What a field of a data set holds, for a message: the name of most says it."""
    return _IN_WORDS.get(field, field)


def _is(kind: str, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point == (kind == "floating") and dtype.is_signed and not dtype.is_complex


def _is_bytes(name: str, values: Tensor) -> bool:
    """Whether a field holds masks of one byte, in which 255 is no class."""
    return name == "masks" and values.dtype == torch.uint8


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
        if not (fits and (_is(kind, values.dtype) or _is_bytes(name, values))):
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


def fit_fields(fields: Mapping[str, Tensor], native: tuple[int, int], size: tuple[int, int]) -> dict[str, Tensor]:
    """The fields of images of `native` size for images that `change_size` makes of them: cut, then resized.

    Masks take the nearest pixel; boxes are clipped, and dropped if they become empty.
    """
    top, left, height, width = fit_box(*native, size)
    fitted = dict(fields)
    if native == size:
        return fitted
    if "masks" in fitted:
        cut = fitted["masks"][:, top : top + height, left : left + width]
        rows, columns = (
            torch.from_numpy(nearest_places(side, wanted)) for side, wanted in ((height, size[0]), (width, size[1]))
        )
        fitted["masks"] = cut[:, rows][:, :, columns]
    if "boxes" in fitted:
        scale = torch.tensor([size[1] / width, size[0] / height]).repeat(2)
        moved = (fitted["boxes"].float() - torch.tensor([left, top, left, top])) * scale
        boxes, labels = clip_boxes(moved, fitted["box_labels"].long(), size)
        assert labels is not None
        fitted |= {"boxes": boxes, "box_labels": labels}
    return fitted


def as_served(name: str, values: Tensor) -> Tensor:
    """A field in the type in which a batch holds it."""
    if _is_bytes(name, values):
        whole = values.long()
        return whole.masked_fill_(whole == VOID, IGNORED)
    return values.float() if FIELDS[name][0] == "floating" else values.long()
