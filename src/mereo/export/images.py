"""The images that an exported network is tested on: random ones, and test images if the data is available."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.data import Images, load_splits
from mereo.data.layout_options import LayoutOptions
from mereo.data.sets import is_dataset
from mereo.errors import MereoError, UsageError, check_positive, first_line
from mereo.escape import cut
from mereo.inference.evaluate import normalise
from mereo.inference.predict import task_of
from mereo.models import VisionModel

CALIBRATION = 256
"""Number of training images for the ranges of activations."""


class AtHand(NamedTuple):
    """Images of the data a network was trained on.

    Attributes:
        name: of the data set.
        test: images that accuracy is measured on.
        training: a few training images (n, channels, height, width), normalised.
    """

    name: str
    test: Images
    training: Tensor


def normalised(images: Tensor, model: VisionModel) -> Tensor:
    """Images in [0, 1] as a network takes them."""
    return normalise(images, model.pretrained_cfg["mean"], model.pretrained_cfg["std"])


def take(model: VisionModel, images: Images, count: int) -> Tensor:
    """Some images of a set, evenly spaced, as a network takes them."""
    count = min(count, len(images))
    indices = torch.arange(count) * (len(images) // max(count, 1))
    batch = images.batch(indices, crop=(model.image_shape[1], model.image_shape[2]))
    return normalised(batch.images, model)


def random_inputs(model: VisionModel, count: int) -> Tensor:
    """Inputs of noise, the same each time, as a network takes them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = model.example_inputs(count)
    return normalised(inputs, model) if model.input_kind == "images" else inputs


def read_images(model: VisionModel, data: str, root: str | None, limit: int | None) -> AtHand:
    """Test and training images of a data set that is on this machine; nothing is downloaded."""
    if limit is not None:
        check_positive(limit=limit)
    channels, height, width = model.image_shape
    splits = load_splits(
        data, root=root, img_size=(height, width), in_chans=channels, crop_pct=model.pretrained_cfg["crop_pct"],
        validation_fraction=0.0, limit=CALIBRATION, download=False, unseen=task_of(model).unseen_classes,
        options=task_of(model).read_as(LayoutOptions()),
    )  # fmt: skip
    if task_of(model).scores_classes and len(splits.class_names) != model.num_classes:
        raise UsageError(f"data is {data!r} of {len(splits.class_names)} classes; the network has {model.num_classes}.")
    test = splits.test
    if limit is not None and limit < len(test):
        chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:limit]
        test = test.subset(chosen.sort().values)
    return AtHand(Path(data).name, test, take(model, splits.train, CALIBRATION))


def find_images(
    model: VisionModel, data: str | None, root: str | None, limit: int | None, of_run: str | None = None
) -> tuple[AtHand | None, str]:
    """The images of the data set given, which must be there, or of the network's own, which may be; or why there are
    none, as for a network that reads something else.

    The data stated in a weight file is used only if it is the name of a data set: a path would let the file choose
    which folders of this machine are read. The path that the configuration of a run names is used, `of_run`.
    """
    if model.input_kind != "images":
        if data is not None:
            raise UsageError(f"data is {data!r}, and the network reads {model.input_kind}; leave it out.")
        return None, f"the network reads {model.input_kind}"
    if data is not None:
        return read_images(model, data, root, limit), ""
    own = model.metadata.get("data")
    if not isinstance(own, str):
        return None, "the weights do not state the data they were trained on"
    if not is_dataset(own) and own != of_run:
        return (
            None,
            f"the weights were trained on {cut(own, 100)!r}, which is not a registered data set; give it with --data",
        )
    try:
        return read_images(model, own, root, limit), ""
    except (UsageError, MereoError, OSError) as error:
        return None, f"{own} is not available ({first_line(error).rstrip('.')})"
