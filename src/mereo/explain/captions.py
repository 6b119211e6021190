"""The text below the picture of an explanation: how to read it, and whether its maps can be trusted."""

from mereo.explain.columns import FACTOR, FIRST, HIDDEN, LABELS, MESSAGES, SHARE, VOTES, MapColumn
from mereo.explain.deletion import DeletionTest
from mereo.explain.explanation import Explanation
from mereo.explain.wording import WORDINGS

AGREES, DISAGREES = 0.6, 0.2
"""Mean rank correlations from which on an explanation is called evidence, and up to which it is not."""
FEW_PARTS = 24
"""Parts, of all images, below which nothing is concluded from a rank correlation."""
COUPLINGS = {
    SHARE: "the share of a part's vote for",
    MESSAGES: "a part's share of the messages to",
    FACTOR: "the mean factor, of either sign, by which a part counts for",
}

ROLLOUT = (
    "Rollout: what each place counts for the output through all layers of attention; what convolutions and channels"
    " move does not count."
)


def describe_deletion(tested: DeletionTest, claim: str) -> str:
    """How far an explanation and the deletion test agree, in a sentence."""
    each = ", ".join(f"{r:+.2f}" for r in tested.correlation.tolist())
    mean = float(tested.correlation.mean())
    several = f"; mean {mean:+.2f}" if len(tested.correlation) > 1 else ""
    if tested.parts * len(tested.correlation) < FEW_PARTS:
        verdict = "which is of too few parts to rely on"
    elif mean >= AGREES:
        verdict = f"so the {claim} show what the answer depends on"
    elif mean > DISAGREES:
        verdict = f"so the {claim} show only partly what the answer depends on"
    else:
        verdict = f"so do not trust the {claim}: the answer depends on other parts"
    return (
        "Part hidden: how much that score really falls when a part takes the image's mean colour. Rank correlation"
        f" with the {claim} over {tested.parts} parts (1: same order, 0: none): {each}{several}, {verdict}."
    )


def _compared(titles: list[str]) -> str:
    """The value compared with the deletion test where there are no votes."""
    return "shares of attention" if "rollout" in titles or "class attention" in titles else "couplings"


def about_routings(explanation: Explanation, answer: str) -> list[str]:
    """What the maps of couplings show, in at most one line."""
    maps = list(explanation.maps.values())
    if not maps:
        return []
    share = COUPLINGS[LABELS[maps[-1].over]]
    last, earlier = maps[-1].grid.feeds is None, sum(m.grid.feeds is not None for m in maps)
    if not last:
        return [f"Routing: {share} the capsules that voted for {answer}."]
    if not earlier:
        return [f"Routing: {share} {answer}."]
    title = FIRST if earlier == 1 else "earlier routings"
    return [f"{title.capitalize()}: {share} the capsules that voted for {answer}; last routing: for {answer} itself."]


def caption_of(
    explanation: Explanation, columns: list[MapColumn], *, true_known: bool, asked: bool, total: int
) -> list[str]:
    """How to read the picture, line by line.

    Args:
        explanation: of the images that are drawn.
        columns: its maps.
        true_known: whether a true class is shown.
        asked: whether the explained classes were given.
        total: number of images, of which the first are drawn.
    """
    words = WORDINGS[explanation.kind]
    answer = "that class" if asked else "the predicted class"
    bar = "the chosen class" if asked else f"{words.best}, the prediction"
    lines = [f"Orange bar: {bar}." + (" Green name: the true class." if true_known else "")]
    titles = [column.title for column in columns]
    lines += about_routings(explanation, answer)
    if HIDDEN in titles:
        lines += [
            "Occlusion: how much that score falls when a square takes the image's mean colour; blue: it rises.",
            "The parts that vote for its classes have no places on the image; parse trees show their votes."
            if explanation.contributions is not None
            else "This network has no routing to its classes, so there are no votes to draw.",
        ]
    if VOTES in titles:
        lines.append(words.votes.maps.format(score=words.one))
        if titles.count(VOTES) > 1:
            lines.append("Red: for that class; blue: against it. Its parts are of several sizes, one column each.")
    if explanation.deletion is not None:
        lines.append(describe_deletion(explanation.deletion, "votes" if VOTES in titles else _compared(titles)))
    if "class attention" in titles:
        lines.append("Class attention: what the class token takes from each place in its last layer, mean over heads.")
    if "rollout" in titles:
        lines.append(ROLLOUT)
    if any(column.grid.first > column.grid.step for column in columns):
        lines.append("A part is drawn at the centre of its receptive field.")
    if total > len(explanation.scores):
        lines.append(f"The first {len(explanation.scores)} of {total} images.")
    return lines
