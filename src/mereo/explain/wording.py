"""What the scores of a network are called in pictures, and how they are drawn as bars."""

from typing import NamedTuple

from torch import Tensor

from mereo.inference.predict import task_of
from mereo.models import VisionModel


class Wording(NamedTuple):
    """Words for the scores of a network.

    Attributes:
        column: heading of the bars, and the line below it.
        one: a single score.
        raises, lowers: what a change of a pixel does.
        best: the highest score.
        voted: what votes add to: "length" where it is the score but for a squash, or else "pose".
    """

    column: tuple[str, str]
    one: str
    raises: str
    lowers: str
    best: str
    voted: str = "pose"

    @property
    def votes(self) -> str:
        """What a map of votes shows, in a sentence."""
        if self.voted == "length":
            return "Votes: what each part adds to the length of that capsule before it is squashed below 1."
        return (
            f"Votes: what each part adds to the pose of that capsule, along its direction; the {self.one} is computed"
            " from more than that."
        )

    @property
    def edges(self) -> str:
        """What the number at an edge of a parse tree is, in a sentence."""
        if self.voted == "length":
            return "A number is what a vote adds to the length of the capsule above (red) or subtracts from it (blue)."
        return "A number is what a vote adds to the pose of the capsule above, along its direction (blue: against it)."


WORDINGS: dict[str, Wording] = {
    "lengths": Wording(
        ("class capsules", "their lengths"), "length", "makes its capsule longer", "shorter", "the longest capsule",
        "length",
    ),
    "activations": Wording(
        ("class capsules", "their activations"), "activation", "makes its capsule more active", "less",
        "the most active capsule",
    ),
    "logits": Wording(("classes", "softmax of scores"), "score", "raises its score", "lowers it", "the highest score"),
    "outputs": Wording(("outputs", ""), "output", "raises it", "lowers it", "the largest output"),
}  # fmt: skip
"""By the kind of score."""


def kind_of(model: VisionModel) -> str:
    """The kind of a model's scores; "outputs" where its task is not to choose between classes."""
    return model.score_kind if task_of(model).scores_classes else "outputs"


def bars_of(scores: Tensor, kind: str) -> Tensor:
    """What the bars show: the softmax of logits, and other scores as they are: (..., classes) -> the same."""
    return scores.softmax(-1) if kind == "logits" else scores
