"""The test images of an experiment, preprocessed for one trained network."""

import torch

from mereo.data import Batch, load_split
from mereo.data.split import stratified
from mereo.errors import UsageError
from mereo.inference.evaluate import normalise
from mereo.models import VisionModel


def take_test_images(
    model: VisionModel, data: str, data_root: str | None, count: int | None, device: torch.device
) -> Batch:
    """At most `count` images of the test split, classes in proportion, normalised and on the device."""
    test = load_split(
        data, root=data_root, img_size=model.image_shape[1:], in_chans=model.image_shape[0],
        crop_pct=model.pretrained_cfg["crop_pct"],
    )  # fmt: skip
    if test.labels_per_image > 1:
        raise UsageError(f"data is {data!r}, whose images hold several objects; this experiment takes one label each.")
    everything = test.batch(torch.arange(len(test)), crop=model.image_shape[1:])
    wanted = len(everything.labels) if count is None else count
    chosen = stratified(everything.labels, wanted, 0)[1]
    images = normalise(everything.images[chosen], model.pretrained_cfg["mean"], model.pretrained_cfg["std"])
    return Batch(images.to(device), everything.labels[chosen].to(device))
