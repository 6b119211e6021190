"""Words for the scores of a network in pictures, and the values of their bars."""

from typing import NamedTuple

from torch import Tensor

from mereo.inference.predict import task_of
from mereo.models import VisionModel


class Votes(NamedTuple):
    """Words for the quantity that votes add to.

    Attributes:
        target: its name.
        maps: what a map of votes shows; {score} is a single score.
        edges: what the number at an edge of a parse tree is.
        capsule: the target for one capsule; {} is its name.
    """

    target: str
    maps: str
    edges: str
    capsule: str


TO_LENGTH = Votes(
    "length",
    "Votes: what each part adds to the length of that capsule before it is squashed below 1.",
    "A number is what a vote adds to the length of the capsule above (red) or subtracts from it (blue).",
    "the length of {} before the squash",
)
"""For capsules whose length, before a squash, is the score."""
TO_POSE = Votes(
    "pose",
    "Votes: what each part adds to the pose of that capsule, along its direction; the {score} is computed from more"
    " than that.",
    "A number is what a vote adds to the pose of the capsule above, along its direction (blue: against it).",
    "{}, along its pose",
)


class Wording(NamedTuple):
    """Words for the scores of a network.

    Attributes:
        column: heading of the bars, and the line below it.
        one: a single score.
        raises, lowers: the effect of a change of a pixel.
        best: the highest score; of what is no class, where it is drawn.
        votes: words for the quantity that votes for a class add to.
    """

    column: tuple[str, str]
    one: str
    raises: str
    lowers: str
    best: str
    votes: Votes = TO_POSE


WORDINGS: dict[str, Wording] = {
    "lengths": Wording(
        ("class capsules", "their lengths"), "length", "makes its capsule longer", "shorter", "the longest capsule",
        TO_LENGTH,
    ),
    "activations": Wording(
        ("class capsules", "their activations"), "activation", "makes its capsule more active", "less",
        "the most active capsule",
    ),
    "logits": Wording(("classes", "softmax of scores"), "score", "raises its score", "lowers it", "the highest score"),
    "labels": Wording(
        ("labels", "sigmoid of scores"), "score", "raises its score", "lowers it", "the most probable label"
    ),
    "numbers": Wording(
        ("numbers", "in spreads from the mean"), "value", "raises it", "lowers it", "the number highest above its mean"
    ),
    "outputs": Wording(("outputs", ""), "output", "raises it", "lowers it", "the largest output"),
    "boxes": Wording(
        ("box", "class, score"), "score of the box", "raises the score", "lowers it", "that is outlined in green"
    ),
    "areas": Wording(
        ("area", "class, share of pixels"), "mean logit of the class in its area", "raises the logit", "lowers it",
        "that is outlined in green",
    ),
    "similarities": Wording(
        ("most similar", "image, cosine"), "similarity", "raises the similarity", "lowers it", "to the image beside it"
    ),
}  # fmt: skip
"""Words by the kind of score."""
UNBOUNDED = ("outputs", "numbers")
"""Kinds of scores that may be negative, or above 1."""


def kind_of(model: VisionModel) -> str:
    """The kind of a model's scores; "labels" or "numbers" for tasks of these, "outputs" for other tasks."""
    if model.output_kind != "scores":
        return "outputs"
    task = task_of(model)
    if task.scores_classes or (task.outputs_are in WORDINGS and model.score_kind != "logits"):
        return model.score_kind
    return task.outputs_are if task.outputs_are in WORDINGS else "outputs"


def bars_of(scores: Tensor, kind: str) -> Tensor:
    """Values of the bars: the softmax of logits, the sigmoid for labels, other scores as they are; (..., classes)."""
    if kind == "labels":
        return scores.sigmoid()
    return scores.softmax(-1) if kind == "logits" else scores
