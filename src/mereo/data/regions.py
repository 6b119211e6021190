"""Scenes as features of attended regions, with the sentence that is true of them; made from a seed.

A sentence is a subject, a predicate and an object, whole numbers of one list of concepts: entities, predicates, classes
and attributes.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions
from mereo.data.load import Splits, Wanted, load_splits, made_splits
from mereo.data.regular import open_regular
from mereo.data.tensor_set import TensorSet
from mereo.errors import MereoError, UsageError, type_of

SURE = 0.9
"""Probability with which the relation of two entities is the one of the table, else it is drawn evenly."""
CANVAS, SIDE = 24, 8
"""Pixels of a side of a picture and of each image in it."""
RELATIONS = ("left of", "above", "same as")
_ENTITIES = ("dog", "cat", "horse", "bird", "boat", "car", "tree", "house", "ball", "child", "chair", "cup")
_PREDICATES = ("near", "on", "behind", "holds", "sees")
_CANDIDATES = 16


class Scenes(TensorSet):
    """Scenes of two or three regions, with a sentence for each.

    Args:
        regions: features of the region of the subject, of the object, and maybe of both.
        labels: subject, predicate, object and further concepts; None for scenes to predict.
        class_names: of the concepts.

    Shapes: regions float32 (scenes, regions, features), labels int64 (scenes, measurements).
    """

    serves = "regions"
    of_samples = ("regions", "labels")

    def __init__(self, regions: Tensor, labels: Tensor | None, class_names: tuple[str, ...] = ()) -> None:
        if regions.dim() != 3 or regions.dtype != torch.float32:
            raise UsageError(
                f"regions are {regions.dtype} of shape {tuple(regions.shape)}; they must be float32 (scenes, regions,"
                " features)."
            )
        if labels is not None and (labels.dim() != 2 or len(labels) != len(regions) or labels.shape[1] < 3):
            raise UsageError(
                f"labels are of shape {tuple(labels.shape)}; they must be ({len(regions)}, at least 3): subject,"
                " predicate, object."
            )
        self.regions, self.labels, self.class_names = regions, labels, class_names
        self.labels_per_image = 3 if labels is None else labels.shape[1]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, regions, features): what a scene takes in memory."""
        return 1, self.regions.shape[1], self.regions.shape[2]

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The scenes at `indices`; there are no images to crop."""
        chosen = indices[options.share].to(self.regions.device)
        batch = Batch(regions=self.regions[chosen])
        if self.labels is not None:
            batch = batch._replace(labels=self.labels[chosen])
        return batch.to(options.device or self.regions.device)


# --- scenes of features ---------------------------------------------------------------------------------------------


class World(NamedTuple):
    """What all scenes of one seed share.

    Attributes:
        prototypes: mean features of each entity, (entities, features).
        relations: the usual predicate of each subject and object, int64 (entities, entities), from 0.
        classes: the class of each entity, int64 (entities,), from 0.
        looks: what an attribute adds to the features, (attributes, features).
        predicates: their number.
        noise: standard deviation of the features around their mean.
    """

    prototypes: Tensor
    relations: Tensor
    classes: Tensor
    looks: Tensor
    predicates: int
    noise: float

    @classmethod
    def made(cls, sizes: Sequence[int], features: int, noise: float, seed: int) -> "World":
        """A world with these numbers of entities, predicates, classes, attributes; from N(0, 1) or evenly drawn."""
        entities, predicates, classes, attributes = sizes
        generator = torch.Generator().manual_seed(seed)
        prototypes = torch.randn(entities, features, generator=generator)
        relations = torch.randint(predicates, (entities, entities), generator=generator)
        kinds = torch.randint(max(classes, 1), (entities,), generator=generator)
        return cls(
            prototypes, relations, kinds, torch.randn(attributes, features, generator=generator), predicates, noise
        )

    def scenes(self, count: int, generator: torch.Generator, names: tuple[str, ...], *, classes: int) -> Scenes:
        """Subject and object drawn evenly, the predicate from the table or at random, and noisy features of both.

        v = prototype + look + noise N(0, I);   p = relations[s, o] with probability 0.9, else drawn evenly
        """
        entities, features = self.prototypes.shape
        pair = torch.randint(entities, (count, 2), generator=generator)
        subject, other = pair.unbind(1)
        drawn = torch.randint(self.predicates, (count,), generator=generator)
        sure = torch.rand(count, generator=generator) < SURE
        predicate = torch.where(sure, self.relations[subject, other], drawn)
        columns = [subject, entities + predicate, other]
        mean = self.prototypes[pair]
        attribute = torch.randint(max(len(self.looks), 1), (count, 2), generator=generator)
        if len(self.looks):
            mean = mean + self.looks[attribute]
        start = entities + self.predicates
        for place in (0, 1):
            columns += [start + self.classes[pair[:, place]]] if classes else []
            columns += [start + classes + attribute[:, place]] if len(self.looks) else []
        regions = mean + self.noise * torch.randn(count, 2, features, generator=generator)
        return Scenes(regions, torch.stack(columns, 1), names)


def concept_names(sizes: Sequence[int]) -> tuple[str, ...]:
    """A name for each entity, predicate, class and attribute, by their numbers."""
    words = (_ENTITIES, _PREDICATES, (), ())
    names: list[str] = []
    for kind, size, known in zip(("entity", "predicate", "class", "attribute"), sizes, words, strict=True):
        names += [known[n] if n < len(known) else f"{kind} {n}" for n in range(size)]
    return tuple(names)


def load_scenes(
    wanted: Wanted, sizes: Sequence[int], features: int, noise: float, seed: int, splits: Mapping[str, int]
) -> Splits:
    """The splits of made scenes."""
    world, names = World.made(sizes, features, noise, seed), concept_names(sizes)
    made = {}
    for number, (split, count) in enumerate(splits.items()):
        generator = torch.Generator().manual_seed(len(splits) * seed + number + 1)
        made[split] = world.scenes(count, generator, names, classes=sizes[2])
    return made_splits(made, names, limit=wanted.limit)


# --- scenes of pictures ---------------------------------------------------------------------------------------------


def _places(count: int, generator: torch.Generator) -> Tensor:
    """Upper left corners of two images that do not overlap: int64 (count, 2 images, 2), each (y, x)."""
    room = CANVAS - SIDE
    tried = torch.randint(room + 1, (count, _CANDIDATES, 2, 2), generator=generator)
    apart = (tried[:, :, 0] - tried[:, :, 1]).abs().amax(-1) >= SIDE
    found = tried[torch.arange(count), apart.long().argmax(1)]
    opposite = torch.tensor([[0, 0], [room, room]])
    return torch.where(apart.any(1)[:, None, None], found, opposite)


def _boxes(places: Tensor) -> Tensor:
    """Boxes x0, y0, x1, y1 of two images and of both, as shares of the canvas: (count, 3, 4)."""
    low = places.flip(-1).float()
    boxes = torch.cat((low, low + SIDE), -1)
    union = torch.cat((boxes[:, :, :2].amin(1), boxes[:, :, 2:].amax(1)), -1)
    return torch.cat((boxes, union.unsqueeze(1)), 1) / CANVAS


def _cut(canvas: Tensor, boxes: Tensor) -> Tensor:
    """Pixels inside of boxes, resized to SIDE: (count, height, width), (count, boxes, 4) -> (count, boxes, pixels)."""
    steps = (torch.arange(SIDE) + 0.5) / SIDE
    x = boxes[..., 0, None] + (boxes[..., 2] - boxes[..., 0])[..., None] * steps  # (count, boxes, SIDE)
    y = boxes[..., 1, None] + (boxes[..., 3] - boxes[..., 1])[..., None] * steps
    grid = torch.stack((x.unsqueeze(2).expand(-1, -1, SIDE, -1), y.unsqueeze(3).expand(-1, -1, -1, SIDE)), -1)
    flat = 2 * grid.flatten(1, 2) - 1  # (count, boxes * SIDE, SIDE, 2)
    seen = F.grid_sample(canvas.unsqueeze(1), flat, align_corners=False).squeeze(1)
    return seen.unflatten(1, (boxes.shape[1], SIDE)).flatten(2)


def _pairs(labels: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Places of two images, of the same class with probability 1 / 3 and else of two classes: int64 (count,) each."""
    order = labels.argsort(stable=True)
    sizes = torch.bincount(labels)
    first = torch.randint(len(labels), (count,), generator=generator)
    size, start = sizes[labels[first]], (sizes.cumsum(0) - sizes)[labels[first]]
    same = torch.rand(count, generator=generator) < 1 / 3
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    place = (share * torch.where(same, size, len(labels) - size)).long()
    return first, order[torch.where(same, start + place, place + size * (place >= start))]


def picture_scenes(images: Tensor, labels: Tensor, count: int, seed: int, names: tuple[str, ...]) -> Scenes:
    """Pictures of two images; a third of them shows the same class twice, which is the relation then.

    Of other pairs the subject is left of the object or above it, whichever distance is larger. The features of a region
    are its pixels, resized, and its box: the subject, the object, and the smallest box around both.

    Args:
        images: float32 (n, SIDE, SIDE) in [0, 1].
        labels: int64 (n,).
        names: of the classes.
    """
    generator = torch.Generator().manual_seed(seed)
    first, second = _pairs(labels, count, generator)
    chosen, places = torch.stack((first, second), 1), _places(count, generator)
    same = labels[first] == labels[second]
    down, across = (places[:, 1] - places[:, 0]).unbind(1)
    beside = across.abs() >= down.abs()
    turned = torch.where(beside, across, down) < 0  # the second image is the subject
    turned = (turned & ~same).unsqueeze(1)
    chosen = torch.where(turned, chosen.flip(1), chosen)
    places = torch.where(turned.unsqueeze(2), places.flip(1), places)
    predicate = torch.where(same, 2, torch.where(beside, 0, 1))
    canvas = torch.zeros(count, CANVAS, CANVAS)
    inside = torch.arange(SIDE)
    for place in (0, 1):
        rows = (places[:, place, 0, None] + inside).unsqueeze(2)
        columns = (places[:, place, 1, None] + inside).unsqueeze(1)
        canvas[torch.arange(count)[:, None, None], rows, columns] = images[chosen[:, place]]
    boxes = _boxes(places)
    classes, subject, other = len(names), *labels[chosen].unbind(1)
    sentence = torch.stack((subject, classes + predicate, other), 1)
    return Scenes(torch.cat((_cut(canvas, boxes), boxes), 2), sentence, (*names, *RELATIONS))


def load_pictures(wanted: Wanted, of: str, splits: Mapping[str, int]) -> Splits:
    """Pictures of two images of a data set: of its training, held-out and test images for the splits."""
    source = load_splits(
        of, root=wanted.root, img_size=SIDE, in_chans=1, download=wanted.download, validation_fraction=0.1
    )
    made = {}
    for number, (split, images) in enumerate(zip(splits, (source.train, source.validation, source.test), strict=True)):
        assert images is not None
        batch = images.batch(torch.arange(len(images)))
        made[split] = picture_scenes(batch.images[:, 0], batch.labels, splits[split], number, source.class_names)
    return made_splits(made, made["train"].class_names, limit=wanted.limit)


# --- files ----------------------------------------------------------------------------------------------------------


class NamedScenes(NamedTuple):
    """Scenes to predict, by name."""

    names: list[str]
    regions: Tensor

    def as_split(self) -> Scenes:
        return Scenes(self.regions, None)


def read_scenes(path: Path) -> NamedScenes:
    """The scenes of a file: .npz with regions, or .npy; (regions, features) or (scenes, regions, features)."""
    if path.suffix.lower() not in (".npz", ".npy"):
        raise UsageError(f"{path} is not a file of regions; give .npz with an array regions, or .npy.")
    try:
        with open_regular(path) as file:
            found = np.load(io.BytesIO(file.read()), allow_pickle=False)
        values = found["regions"] if path.suffix.lower() == ".npz" else found
        return named_scenes(values, path.stem)
    except OSError as error:
        raise MereoError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError) as error:
        raise UsageError(f"{path} is not regions as {path.suffix} holds them ({error}).") from error


def named_scenes(values: Any, name: str = "scene") -> NamedScenes:
    """Scenes from an array (regions, features) or (scenes, regions, features)."""
    array = np.asarray(values)
    if array.ndim not in (2, 3) or not array.size or array.dtype.kind not in "fiu":
        raise UsageError(
            f"regions are {array.dtype} of shape {array.shape}; they must be numbers (regions, features) or (scenes,"
            " regions, features)."
        )
    regions = torch.from_numpy(array.astype(np.float32)).reshape(-1, *array.shape[-2:])
    if not bool(regions.isfinite().all()):
        raise UsageError("regions hold a number that is not finite; leave such scenes out.")
    return NamedScenes([name] if len(regions) == 1 else [f"{name}-{n}" for n in range(len(regions))], regions)


def scenes_of(regions: Any) -> NamedScenes:
    """The scenes of files, of an array, or of a list of these."""
    if isinstance(regions, str | Path):
        return read_scenes(Path(regions))
    if isinstance(regions, np.ndarray | Tensor):
        return named_scenes(regions.detach().cpu() if isinstance(regions, Tensor) else regions)
    if not isinstance(regions, Sequence) or not regions:
        raise UsageError(f"regions are {type_of(regions)}; give files or arrays of regions, or a list of them.")
    parts = [scenes_of(each) for each in regions]
    if len({part.regions.shape[1:] for part in parts}) > 1:
        shapes = sorted({tuple(part.regions.shape[1:]) for part in parts})
        raise UsageError(f"regions are of shapes {shapes[0]} and {shapes[1]}; give scenes of one shape.")
    return NamedScenes([name for part in parts for name in part.names], torch.cat([part.regions for part in parts]))
