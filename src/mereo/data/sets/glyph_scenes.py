"""Glyph scenes: one to three coloured glyphs in the quarters of an image, and prompts that are true of them.

"a red square left of a blue star", "a ring top and a green cross bottom right". Made when they are needed, as functions
of a number and a seed, with exact truth.
"""

from typing import Any

from mereo.data.registry import later, register_dataset
from mereo.errors import check_count

VALIDATION, TEST = 100, 500
"""Scenes of the validation and of the test split, for each of which a picture is drawn in evaluation."""


def configure(*, train: int = 100_000, test: int = TEST) -> dict[str, Any]:
    """Options: numbers of training (100000) and of test scenes (500)."""
    check_count(1, train=train, test=test)
    splits = {"train": train, "validation": VALIDATION, "test": test}
    return {"load": later("mereo.data.glyph_scenes.served:load_glyph_scenes", splits=splits), "splits": splits}


register_dataset(
    "glyph_scenes",
    summary="up to three coloured glyphs in the quarters of an image with a prompt that is true; generated when needed",
    source="ours",
    num_classes=36,
    in_chans=3,
    size=(32, 32),
    augment=(),
    fields=("prompts", "images", "labels"),
    configure=configure,
    **configure(),
)
