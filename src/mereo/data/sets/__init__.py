"""The data sets of the package, one file each.

A file registers its facts and its reader with `register_dataset`. Facts must be cheap to import, so a reader imports
PyTorch and the like inside its function.
"""

from mereo.data.registry import DATASETS, find_dataset, is_dataset, list_datasets
from mereo.data.sets import (
    actions,
    affnist,
    captions,
    cifar10,
    coloured_shapes,
    convex_hull,
    delaunay,
    digits,
    fashion_mnist,
    figures,
    gcog,
    glyph_scenes,
    glyphs,
    match3,
    mnist,
    mqar,
    multimnist,
    organ_masks,
    picture_relations,
    pystdlib,
    shape_boxes,
    shape_masks,
    shape_tags,
    shelves,
    smallnorb,
    solids,
    sprites,
    svhn,
    tensor_brain_scenes,
    tours,
    turned_digits,
)

__all__ = [
    "DATASETS", "actions", "affnist", "captions", "cifar10", "coloured_shapes", "convex_hull", "delaunay", "digits",
    "fashion_mnist", "figures", "find_dataset", "gcog", "glyph_scenes", "glyphs", "is_dataset", "list_datasets",
    "match3", "mnist", "mqar", "multimnist", "organ_masks", "picture_relations", "pystdlib", "shape_boxes",
    "shape_masks", "shape_tags", "shelves", "smallnorb", "solids", "sprites", "svhn", "tensor_brain_scenes", "tours",
    "turned_digits",
]  # fmt: skip
