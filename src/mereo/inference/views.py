"""Test-time augmentation: the scores of an image as the mean over several views of it.

    s(x) = (1 / K) sum_k f(v_k(x))

Augmented views are the image itself and changes of it, drawn from the augmentation that the network was trained with,
because those are the changes that it has learned to ignore. They are the same for every image, so that the answer for
an image depends on nothing else. Five crops are the corners and the centre of an image that is larger than the network
takes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mereo.data import load_size
from mereo.data.augmentation import Augmentation
from mereo.data.registry import find_dataset
from mereo.errors import UsageError
from mereo.inference.evaluate import normalise
from mereo.models import VisionModel
from mereo.tasks import Classification, get_task

Views = Callable[[Tensor], list[Tensor]]
"""Images (batch, channels, height, width) in [0, 1] -> several batches; first the images as they are without views."""
KEY = "augment"
"""Key in the metadata of weights."""
NUM_VIEWS = 8
LEFT_OUT = ("erase", "noise")
"""Operations that remove information, which no mean over views brings back."""


def trained_augmentation(model: VisionModel) -> tuple[str, ...]:
    """The augmentation that a model was trained with, from its weights or else from the data set that they name."""
    texts = model.metadata.get(KEY)
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return tuple(texts)
    data = model.metadata.get("data")
    info = find_dataset(data) if isinstance(data, str) else None
    return () if info is None else tuple(info.augment)


def _kept(augment: Sequence[str]) -> list[str]:
    return [text for text in augment if text.partition("=")[0] not in (*LEFT_OUT, "none")]


def augmented_views(augment: Sequence[str], count: int = NUM_VIEWS, seed: int = 0) -> Views:
    """A function that gives images and `count` changed versions of them, by an augmentation as in training.

    Args:
        augment: the operations as text, such as ("crop=4", "flip").
        count: of the changed versions.
        seed: of the changes.
    """
    operations = Augmentation.parse(_kept(augment))
    if not operations.operations:
        raise UsageError(
            "tta is set, and these weights were trained without augmentation, so that no change is known which keeps"
            " the class of an image; leave it out."
        )

    def views(images: Tensor) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        drawn = operations.draw(count, images.shape[-2], images.shape[-1], generator)
        changed = [
            operations.apply(images, [p[k : k + 1].expand(len(images), *p.shape[1:]) for p in drawn])
            for k in range(count)
        ]
        return [images, *changed]

    return views


def five_crops(size: tuple[int, int]) -> Views:
    """A function that cuts images to (height, width) at the centre and at the corners: five batches.

    The centre is where images are cut without views; with an odd margin it is the pixel before the middle.
    """
    height, width = size

    def views(images: Tensor) -> list[Tensor]:
        bottom, right = images.shape[-2] - height, images.shape[-1] - width
        corners = ((bottom // 2, right // 2), (0, 0), (0, right), (bottom, 0), (bottom, right))
        return [images[..., top : top + height, left : left + width] for top, left in corners]

    return views


class MeanOverViews(VisionModel):
    """A classifier whose scores are the mean over views of an image.

    It takes images in [0, 1], because views are made before the normalisation: `pretrained_cfg` has the mean 0 and the
    standard deviation 1.

    Args:
        network: whose scores are averaged; it is not copied.
        views: made of each batch.
        count: number of them.
        changes: a description of them.
        size: height and width of the images that the views are made of; the network's when None.

    Shapes: images (batch, channels, *size) -> scores (batch, classes).
    """

    def __init__(
        self, network: VisionModel, views: Views, count: int, changes: str, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.network, self.views, self.count, self.changes, self.size = network, views, count, changes, size
        channels, *sides = network.image_shape
        height, width = sides if size is None else size
        self.image_shape = channels, height, width
        self.num_classes, self.num_features = network.num_classes, network.num_features
        self.class_names, self.metadata = network.class_names, network.metadata
        cfg = network.pretrained_cfg
        own = {"mean": (0.0,) * channels, "std": (1.0,) * channels, "input_size": self.image_shape}
        self.pretrained_cfg = {**cfg, **own, "crop_pct": cfg["crop_pct"] if size is None else 1.0}

    @property
    def score_kind(self) -> str:
        return self.network.score_kind

    def make_classifier(self) -> nn.Module:
        return self.network.make_classifier()

    def fuse(self) -> "MeanOverViews":
        return MeanOverViews(self.network.fuse(), self.views, self.count, self.changes, self.size)

    def unchanged(self, images: Tensor) -> Tensor:
        """The images as the network takes them without views: their centre if they are larger."""
        _, height, width = self.network.image_shape
        return five_crops((height, width))(images)[0]

    def forward(self, images: Tensor) -> Tensor:
        cfg, dtype = self.network.pretrained_cfg, next(self.network.parameters()).dtype
        # Changes of images are computed in single precision, also for a network of another one.
        shown = [normalise(view, cfg["mean"], cfg["std"]).to(dtype) for view in self.views(images.float())]
        scores = torch.stack([self.network(view) for view in shown])
        return (scores.float() if dtype in (torch.float16, torch.bfloat16) else scores).mean(0)


def mean_over_views(model: VisionModel, *, tta: bool = False, five_crop: bool = False) -> VisionModel:
    """A classifier with the mean of its scores over views; itself if neither kind of views is wanted.

    Args:
        model: as loaded, with the metadata of its weights.
        tta: the image and changes of it, as in training.
        five_crop: the corners and the centre of an image that is larger than the network takes.
    """
    given = {"tta": tta, "five_crop": five_crop}
    if not any(given.values()):
        return model
    if all(given.values()):
        raise UsageError("tta and five_crop are both set; give one of them.")
    name = next(name for name, wanted in given.items() if wanted)
    task = str(model.metadata.get("task", Classification.name))
    if not get_task(task).scores_classes:
        raise UsageError(f"{name} is set, and the outputs of the task {task} have no mean over views; leave it out.")
    return _over_crops(model) if five_crop else _over_changes(model)


def _over_changes(model: VisionModel) -> MeanOverViews:
    augment = trained_augmentation(model)
    changes = f"the image and {NUM_VIEWS} versions of it, augmented as in training ({', '.join(_kept(augment))})"
    return MeanOverViews(model, augmented_views(augment), NUM_VIEWS + 1, changes)


def _over_crops(model: VisionModel) -> MeanOverViews:
    _, height, width = model.image_shape
    share = model.pretrained_cfg["crop_pct"]
    size = load_size((height, width), share)
    if size == (height, width):
        raise UsageError(
            f"five_crop is set, and the network takes whole images of {height} x {width} (its crop_pct is {share:g}),"
            " so that there is no border to cut crops from; leave it out, or set tta for views changed as in training."
        )
    cut = f"crops of {height} x {width} at the centre and the corners of images of {size[0]} x {size[1]}"
    return MeanOverViews(model, five_crops((height, width)), 5, cut, size)


def views_of(model: VisionModel) -> MeanOverViews | None:
    """The mean over views that `mean_over_views` made; None for a network as it is."""
    return model if isinstance(model, MeanOverViews) else None


def words_of(model: VisionModel) -> str:
    """What to add to the title of a measurement: ", mean over 9 views"; nothing for a network without views."""
    views = views_of(model)
    return "" if views is None else f", mean over {views.count} views"
