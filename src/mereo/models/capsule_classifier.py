"""The base of capsule classifiers: vision networks with class capsules and their poses behind the scores."""

from typing import Any, ClassVar

from torch import Tensor, nn

from mereo.core import Capsules, lengths
from mereo.errors import UsageError
from mereo.layers.capsules import FullyConnectedDecoder, mask_poses
from mereo.models.base import VisionModel


class CapsuleClassifier(VisionModel):
    """An image classifier whose scores are the activations of its class capsules.

    A subclass defines what a `VisionModel` defines, and `route` (last parts -> poses of the class capsules) unless its
    head does that. Scores are the lengths of the poses; a network whose activations are something else defines
    `class_capsules` instead and sets `scores_are_lengths` to False.

    Attributes:
        with_decoder: whether there is a decoder, of poses of `class_dim` numbers unless `make_decoder` makes another.
        decoder: rebuilds the image from the class capsules, or None.
        scores_are_lengths: whether a score is the length of its pose, in (0, 1].
    """

    classifier_parts = ("head", "decoder")
    unscored_parts: ClassVar[tuple[str, ...]] = ("decoder",)
    has_capsules: ClassVar[bool] = True
    scores_are_lengths: ClassVar[bool] = True
    default_loss = "margin"
    usual_rate = 3e-3

    decoder: nn.Module | None
    with_decoder: bool = False
    class_dim: int

    @property
    def score_kind(self) -> str:
        return "lengths" if self.scores_are_lengths else "activations"

    def route(self, features: Any) -> Tensor:
        """The class capsules of the last parts: (batch, classes, pose)."""
        return self.head(features)

    def make_decoder(self) -> nn.Module | None:
        """A new decoder that reads the class capsules, if the network has one: linear layers by default."""
        if not self.with_decoder:
            return None
        return FullyConnectedDecoder(self.num_classes * self.class_dim, self.image_shape)

    def score(self, poses: Tensor) -> Tensor:
        """Lengths of the class capsules: (batch, classes, pose) -> (batch, classes)."""
        return lengths(poses)

    def class_capsules(self, features: Any) -> Capsules:
        """The class capsules of the last parts: poses (batch, classes, pose) and activations (batch, classes)."""
        poses = self.route(features)
        return Capsules(poses, self.score(poses))

    def classify(self, features: Any) -> Tensor:
        return self.class_capsules(features).activation

    def place_couplings(self, height: int, width: int) -> None:
        """Does nothing: a capsule network places its couplings when it is built."""

    def _renew_classifier(self) -> None:
        super()._renew_classifier()
        self.decoder = None if self.num_classes == 0 else self.make_decoder()

    def capsules(self, images: Tensor) -> Capsules:
        """The class capsules: poses (batch, classes, pose) and their activations, the scores (batch, classes)."""
        if self.num_classes == 0:
            raise UsageError("num_classes is 0: there are no class capsules; call reset_classifier first.")
        return self.class_capsules(self.forward_features(images))

    def reconstruct(self, capsules: Capsules, classes: Tensor | None = None) -> Tensor:
        """The image that the decoder makes of one class capsule: the most active, or the one in `classes` (batch,).

        Shapes: -> (batch, channels, height, width) in (0, 1).
        """
        if self.decoder is None:
            raise UsageError(f"{type(self).__name__} was made without a decoder; make it with decoder=True.")
        chosen = capsules.activation.argmax(1) if classes is None else classes
        return self.decoder(mask_poses(capsules.pose, chosen))
