"""The networks and images that the page works on."""

import io
import secrets
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.data import Images, ImageSet, dataset_info, load_size, load_split
from mereo.data.decode import decode
from mereo.errors import MereoError, UsageError, first_line
from mereo.inference.predict import class_names, task_of
from mereo.measure.trained_models import choose_data, match_classes, run_config, short_names
from mereo.models import VisionModel
from mereo.training.config import TrainConfig

KEPT = 32
"""Uploaded images that are kept; the oldest goes first."""


@dataclass(frozen=True)
class ShownNetwork:
    """A network on the page.

    Attributes:
        name: short and unique.
        source: of the weights.
        model: in eval mode.
        config: of its run; None where the weights do not lie in a run folder.
        data: name of its test images; None where there are none.
        reason: why there are no test images.
    """

    name: str
    source: Path
    model: VisionModel
    config: TrainConfig | None
    data: str | None
    reason: str

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of its classes."""
        return class_names(self.model)


class Picture(NamedTuple):
    """An image as one network takes it.

    Attributes:
        image: in [0, 1], not normalised, (1, channels, height, width).
        label: the true class of the network, if it is known and one of them.
        truth: the name of the true class, if it is known.
        title: what it is.
    """

    image: Tensor
    label: int | None
    truth: str | None
    title: str


def make_seat(source: Path, label: str, model: VisionModel, data: str | None) -> ShownNetwork:
    """A network and the name of the data that its test images come from; UsageError for one that chooses no class."""
    if model.num_classes == 0 or not task_of(model).scores_classes:
        raise UsageError(f"{source} does not choose between classes; the page is for classifiers.")
    if model.image_shape[0] not in (1, 2, 3):
        raise UsageError(f"{source} takes {model.image_shape[0]} channels; the page is for images of 1, 2 or 3.")
    config = run_config(source)
    try:
        chosen, reason = choose_data([model], [config], data), ""
    except UsageError as error:
        if data is not None:
            raise
        chosen, reason = None, first_line(error)
    return ShownNetwork(label, source, model, config, chosen, reason)


class Networks:
    """Networks, their test images, and the images that were uploaded.

    One thread at a time works on it: observers are attached to the networks themselves.

    Args:
        sources, models: of the networks.
        data: name or path of the test images; that of each network's training when None.
        data_root: folder of the data sets.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        models: Sequence[VisionModel],
        data: str | None = None,
        data_root: str | None = None,
    ) -> None:
        if data is not None:
            dataset_info(data, data_root)  # an unknown name is an error at once
        names = short_names(sources)
        self.networks = [make_seat(*each, data) for each in zip(sources, names, models, strict=True)]
        self.data_root = data_root
        self.lock = threading.Lock()
        self._uploads: OrderedDict[str, dict[tuple[int, ...], Tensor]] = OrderedDict()
        self._tests: dict[tuple[object, ...], Images] = {}

    def network(self, number: int) -> ShownNetwork:
        """A network by its number; UsageError for one that does not exist."""
        if not 0 <= number < len(self.networks):
            raise UsageError(f"model is {number}; it must be from 0 to {len(self.networks) - 1}.")
        return self.networks[number]

    @staticmethod
    def _shape(model: VisionModel) -> tuple[int, ...]:
        size = load_size((model.image_shape[1], model.image_shape[2]), model.pretrained_cfg["crop_pct"])
        return (*model.image_shape, *size)

    def upload(self, content: bytes) -> str:
        """Keep the content of an image file, read as `mereo predict` reads files; its id, MereoError if it is none."""
        from PIL import Image

        read: dict[tuple[int, ...], Tensor] = {}
        for shape in {self._shape(network.model) for network in self.networks}:
            channels, height, width, *stored = shape
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", Image.DecompressionBombWarning)
                    pixels = torch.from_numpy(decode(io.BytesIO(content), (stored[0], stored[1]), channels).copy())
            except Exception as error:  # a broken file can make a decoder raise nearly anything
                unknown = "cannot identify" in str(error)
                raise MereoError(
                    f"it could not be read as an image ({'not an image' if unknown else first_line(error)})."
                ) from error
            image = ImageSet(pixels[None], torch.zeros(1, dtype=torch.int64), ("",))
            read[shape] = image.batch(torch.arange(1), crop=(height, width)).images
        name = secrets.token_hex(8)
        self._uploads[name] = read
        while len(self._uploads) > KEPT:
            self._uploads.popitem(last=False)
        return name

    def test_images(self, owner: ShownNetwork, network: ShownNetwork) -> Images:
        """The test images of one network at the size of another; UsageError or MereoError if there are none."""
        if owner.data is None:
            raise UsageError(owner.reason)
        config = owner.config or TrainConfig(validation_fraction=0.0)
        key = (owner.data, config.limit, config.seed, self._shape(network.model))
        if key not in self._tests:
            channels, height, width = network.model.image_shape
            self._tests[key] = load_split(
                owner.data, "test", root=config.data_root if self.data_root is None else self.data_root,
                img_size=(height, width), in_chans=channels, crop_pct=network.model.pretrained_cfg["crop_pct"],
                validation_fraction=0.0, seed=config.seed, limit=config.limit if config.data == owner.data else None,
                download=False,
            )  # fmt: skip
        return self._tests[key]

    def own_test(self, network: ShownNetwork) -> Images:
        """The test images of a network, with its labels."""
        images = self.test_images(network, network)
        if images.labels_per_image > 1:
            raise UsageError("the test images hold several objects each; the page is for images of one.")
        return match_classes(images, network.model, str(network.data))

    def test_picture(self, owner: ShownNetwork, network: ShownNetwork, index: int) -> Picture:
        """One test image of a network `owner`, as another takes it."""
        images = self.test_images(owner, network)
        if not 0 <= index < len(images):
            raise UsageError(f"index is {index}; the test images are 0 to {len(images) - 1}.")
        crop = (network.model.image_shape[1], network.model.image_shape[2])
        batch = images.batch(torch.tensor([index]), crop=crop)
        if batch.labels.dim() > 1:
            raise UsageError("the test images hold several objects each; the page is for images of one.")
        label = int(batch.labels[0])
        truth = images.class_names[label] if images.class_names else str(label)
        own = network.classes.index(truth) if truth in network.classes else None
        return Picture(batch.images.cpu(), own, truth, f"test image {index}")

    def uploaded(self, name: str, network: ShownNetwork) -> Picture:
        """An uploaded image as a network takes it."""
        if name not in self._uploads:
            raise UsageError("the image is no longer kept; give it again.")
        self._uploads.move_to_end(name)
        return Picture(self._uploads[name][self._shape(network.model)], None, None, "image")
