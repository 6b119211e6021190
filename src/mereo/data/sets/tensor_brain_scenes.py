"""Scenes of two regions with noisy features, and the sentence that is true of each: subject, predicate, object.

Scenes are generated from a seed. The predicate depends on the two entities by a random table, and not on the noise, so
a network reads it better from its own decisions than from the features.
"""

from typing import Any

from mereo.data.registry import later, register_dataset
from mereo.errors import check_count, check_not_negative, check_seed

HELD_OUT = 2000
"""Scenes of the validation and of the test split."""


def configure(
    *, entities: int = 12, predicates: int = 5, classes: int = 0, attributes: int = 0, features: int = 24,
    noise: float = 1.5, train: int = 20000, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Options: numbers of entities (12), predicates (5), classes and attributes (0) to name, features of a region (24),
    standard deviation of the noise (1.5), training scenes (20000), seed of prototypes, table and scenes (0)."""
    check_count(1, entities=entities, predicates=predicates, features=features, train=train)
    check_count(classes=classes, attributes=attributes)
    check_not_negative(noise=noise)
    check_seed(seed)
    sizes = (entities, predicates, classes, attributes)
    splits = {"train": train, "validation": HELD_OUT, "test": HELD_OUT}
    made = later(
        "mereo.data.regions:load_scenes", sizes=sizes, features=features, noise=noise, seed=seed, splits=splits
    )
    return {"load": made, "splits": splits, "num_classes": sum(sizes)}


register_dataset(
    "tensor_brain_scenes",
    summary="two regions of noisy features and a sentence of subject, predicate and object; generated when needed",
    source="ours, for Tresp et al., arXiv:2001.11027",
    in_chans=1,
    size=None,
    augment=(),
    fields=("regions", "labels"),
    configure=configure,
    **configure(),
)
