"""The state of the server: the networks it serves, their test images, and uploaded images."""

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
"""Uploaded images that are kept; the least recently used is dropped first."""


@dataclass(frozen=True)
class ServedModel:
    """A network that the page shows.

    Attributes:
        name: short and unique.
        source: file or run folder of the weights.
        model: in eval mode.
        config: of its training; None if the weights are not in a run folder.
        data: name of the data set of its test images; None if there is none.
        reason: why there are no test images; empty if there are.
    """

    name: str
    source: Path
    model: VisionModel
    config: TrainConfig | None
    data: str | None
    reason: str

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""
        return class_names(self.model)


class InputImage(NamedTuple):
    """An image in the size and channels of one network.

    Attributes:
        image: in [0, 1], not normalised, (1, channels, height, width).
        label: index of the true class; None if it is unknown or not a class of this network.
        truth: name of the true class; None if it is unknown.
        title: name of the image on the page.
    """

    image: Tensor
    label: int | None
    truth: str | None
    title: str


def served_model(source: Path, name: str, model: VisionModel, data: str | None) -> ServedModel:
    """Check that a network is an image classifier, and choose the data set of its test images."""
    if model.num_classes == 0 or not task_of(model).scores_classes:
        raise UsageError(f"{source} is not a classifier; the page shows classifiers.")
    if model.image_shape[0] not in (1, 2, 3):
        raise UsageError(f"{source} takes {model.image_shape[0]} channels; the page is for images of 1, 2 or 3.")
    config = run_config(source)
    try:
        chosen, reason = choose_data([model], [config], data), ""
    except UsageError as error:
        if data is not None:
            raise
        chosen, reason = None, first_line(error)
    return ServedModel(name, source, model, config, chosen, reason)


class Session:
    """The networks that are served, their test images, and the uploaded images.

    Requests take `lock` before they use a network, because observers are attached to the networks themselves.

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
        self.models = [served_model(*each, data) for each in zip(sources, names, models, strict=True)]
        self.data_root = data_root
        self.lock = threading.Lock()
        self._uploads: OrderedDict[str, dict[tuple[int, ...], Tensor]] = OrderedDict()
        self._tests: dict[tuple[object, ...], Images] = {}

    def model(self, number: int) -> ServedModel:
        """A network by its number; UsageError for one that does not exist."""
        if not 0 <= number < len(self.models):
            raise UsageError(f"model is {number}; it must be from 0 to {len(self.models) - 1}.")
        return self.models[number]

    @staticmethod
    def _shape(model: VisionModel) -> tuple[int, ...]:
        size = load_size((model.image_shape[1], model.image_shape[2]), model.pretrained_cfg["crop_pct"])
        return (*model.image_shape, *size)

    def upload(self, content: bytes) -> str:
        """Decode an image file as `mereo predict` does and keep it; its id, or MereoError for an invalid file."""
        from PIL import Image

        read: dict[tuple[int, ...], Tensor] = {}
        for shape in {self._shape(served.model) for served in self.models}:
            channels, height, width, *stored = shape
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", Image.DecompressionBombWarning)
                    pixels = torch.from_numpy(decode(io.BytesIO(content), (stored[0], stored[1]), channels).copy())
            except Exception as error:  # decoders raise many kinds of errors for corrupt files
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

    def test_images(self, owner: ServedModel, served: ServedModel) -> Images:
        """The test images of `owner` as `served` reads images; UsageError or MereoError if there are none."""
        if owner.data is None:
            raise UsageError(owner.reason)
        config = owner.config or TrainConfig(validation_fraction=0.0)
        key = (owner.data, config.limit, config.seed, self._shape(served.model))
        if key not in self._tests:
            channels, height, width = served.model.image_shape
            self._tests[key] = load_split(
                owner.data, "test", root=config.data_root if self.data_root is None else self.data_root,
                img_size=(height, width), in_chans=channels, crop_pct=served.model.pretrained_cfg["crop_pct"],
                validation_fraction=0.0, seed=config.seed, limit=config.limit if config.data == owner.data else None,
                download=False,
            )  # fmt: skip
        return self._tests[key]

    def labelled_test_images(self, served: ServedModel) -> Images:
        """The test images of a network, labelled by its own class indices."""
        images = self.test_images(served, served)
        if images.labels_per_image > 1:
            raise UsageError("the test images hold several objects each; the page is for images of one.")
        return match_classes(images, served.model, str(served.data))

    def test_image(self, owner: ServedModel, served: ServedModel, index: int) -> InputImage:
        """A test image of `owner` as `served` reads images."""
        images = self.test_images(owner, served)
        if not 0 <= index < len(images):
            raise UsageError(f"index is {index}; the test images are 0 to {len(images) - 1}.")
        crop = (served.model.image_shape[1], served.model.image_shape[2])
        batch = images.batch(torch.tensor([index]), crop=crop)
        if batch.labels.dim() > 1:
            raise UsageError("the test images hold several objects each; the page is for images of one.")
        label = int(batch.labels[0])
        truth = images.class_names[label] if images.class_names else str(label)
        own = served.classes.index(truth) if truth in served.classes else None
        return InputImage(batch.images.cpu(), own, truth, f"test image {index}")

    def uploaded_image(self, name: str, served: ServedModel) -> InputImage:
        """An uploaded image in the size and channels of a network."""
        if name not in self._uploads:
            raise UsageError("the image is no longer in memory; upload it again.")
        self._uploads.move_to_end(name)
        return InputImage(self._uploads[name][self._shape(served.model)], None, None, "image")
