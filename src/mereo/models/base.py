"""What every capsule classifier shares: the protocol of timm, and capsules beside the scores."""

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from mereo.capsules import mask_poses
from mereo.core import Capsules, lengths
from mereo.errors import UsageError


class SenderGrid(NamedTuple):
    """Where on the image the senders of a coupling sit: numbered by type, then row, then column.

    Attributes:
        rows, columns, types: of the senders; there are types * rows * columns.
        first: centre of the top left sender in pixels from the image's top and left edge, to within a pixel.
        step: pixels from one sender to the next, down and across.
        feeds: None when the receivers are the classes; else the place of the first receiver among the fine capsules
            (cross-agreement) or the senders of the class routing.
    """

    rows: int
    columns: int
    types: int
    first: float
    step: float
    feeds: int | None = None


class CapsuleClassifier(nn.Module):
    """An image classifier whose scores are the lengths of its class capsules.

    A subclass sets up `forward_features` (image -> last parts), `route` (last parts -> class capsules) and
    `make_classifier`, and the attributes below. The constructor's arguments are plain values: they are the
    configuration that is saved with the weights.

    Attributes:
        num_classes: how many class capsules; 0 means none, then `forward` returns the flattened features.
        num_features: size of the flattened features.
        image_shape: (channels, height, width).
        decoder: rebuilds the image from the class capsules, or None.
        config: {"model": name, "args": arguments}, set by `create_model`.
        pretrained_cfg: preprocessing and provenance under timm's field names, set by `create_model`.
        class_names: of the scores, in order, set by `load`.
        metadata: all that was saved beside the weights, set by `load`.
        first_conv, classifier: names of the modules that depend on in_chans and num_classes.
        channels_last: the memory layout in which its convolutions were measured to train faster on a CPU.
    """

    first_conv: ClassVar[str]
    classifier: ClassVar[str]
    channels_last: ClassVar[bool] = True

    num_classes: int
    num_features: int
    image_shape: tuple[int, int, int]
    head: nn.Module
    decoder: nn.Module | None
    config: dict[str, Any]
    pretrained_cfg: dict[str, Any]
    class_names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})

    @property
    def default_cfg(self) -> dict[str, Any]:
        """timm's other name of `pretrained_cfg`."""
        return self.pretrained_cfg

    @abstractmethod
    def forward_features(self, images: Tensor) -> Tensor:
        """The last parts before the classes: (batch, ...)."""

    @abstractmethod
    def route(self, features: Tensor) -> Tensor:
        """The class capsules of the last parts: (batch, classes, pose)."""

    @abstractmethod
    def make_classifier(self) -> tuple[nn.Module, nn.Module | None]:
        """New class capsules for `num_classes`, which is above 0, and the decoder that reads them, if any."""

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Start the class capsules anew, for another number of classes; 0 removes them.

        `global_pool` is part of timm's call and has no meaning here: None or "" alone are accepted.
        """
        if num_classes < 0:
            raise UsageError(f"num_classes is {num_classes}; it must be at least 0.")
        if global_pool:
            raise UsageError(f"global_pool is {global_pool!r}; capsule networks do not pool. Leave it out.")
        self.num_classes, self.class_names = num_classes, ()
        head, decoder = (nn.Identity(), None) if num_classes == 0 else self.make_classifier()
        like = next(self.parameters())
        for module in (head, decoder):
            if module is not None:
                module.to(like.device, like.dtype).train(self.training)
        self.head, self.decoder = head, decoder
        # What is saved with the weights must still describe the model.
        if hasattr(self, "config"):
            self.config = {**self.config, "args": {**self.config["args"], "num_classes": num_classes}}
            self.pretrained_cfg = {**self.pretrained_cfg, "num_classes": num_classes}

    def get_classifier(self) -> nn.Module:
        """The module that makes the class capsules."""
        return self.head

    def sender_grids(self) -> dict[str, SenderGrid]:
        """Where the senders of each coupling sit, by the coupling's name; senders without a place are left out."""
        return {}

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Scores (batch, classes) of the last parts, or the flattened parts themselves (batch, num_features)."""
        if pre_logits or self.num_classes == 0:
            return features.flatten(1)
        return self.score(self.route(features))

    def score(self, poses: Tensor) -> Tensor:
        """Lengths of the class capsules: (batch, classes, pose) -> (batch, classes)."""
        return lengths(poses)

    def forward(self, images: Tensor) -> Tensor:
        """Lengths of the class capsules: (batch, channels, height, width) -> (batch, classes)."""
        return self.forward_head(self.forward_features(images))

    def capsules(self, images: Tensor) -> Capsules:
        """The class capsules: poses (batch, classes, pose) and their lengths (batch, classes)."""
        if self.num_classes == 0:
            raise UsageError("num_classes is 0: there are no class capsules; call reset_classifier first.")
        poses = self.route(self.forward_features(images))
        return Capsules(poses, self.score(poses))

    def reconstruct(self, capsules: Capsules, classes: Tensor | None = None) -> Tensor:
        """The image that the decoder sees in one class capsule: the longest, or that of `classes` (batch,).

        Shapes: -> (batch, channels, height, width) in (0, 1).
        """
        if self.decoder is None:
            raise UsageError(f"{type(self).__name__} was made without a decoder; make it with decoder=True.")
        chosen = capsules.activation.argmax(1) if classes is None else classes
        return self.decoder(mask_poses(capsules.pose, chosen))

    def check_images(self, images: Tensor) -> None:
        """UsageError unless images are (batch, channels, height, width) as the model was made for."""
        if images.dim() != 4 or tuple(images.shape[1:]) != self.image_shape:
            channels, height, width = self.image_shape
            raise UsageError(
                f"images are {tuple(images.shape)}; this model takes (batch, {channels}, {height}, {width}). "
                "Resize them, or create the model with other in_chans and img_size."
            )
        if not images.is_floating_point():
            raise UsageError(f"images are {images.dtype}; this model takes floats, such as images.float() / 255.")
