"""The text below the picture of an explanation: how to read it, and whether its maps can be trusted."""

from mereo.explain.columns import FACTOR, LABELS, MESSAGES, SHARE, VOTES, MapColumn, matters, routing_titles
from mereo.explain.deletion import DeletionTest
from mereo.explain.explanation import Explanation
from mereo.explain.wording import WORDINGS, Wording

AGREES, DISAGREES = 0.6, 0.2
"""Mean rank correlation from which on an explanation counts as evidence, and up to which it does not."""
FEW_PARTS = 24
"""Least number of parts, over all images, for a conclusion from a rank correlation."""
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
        f"Parts of the size of the {claim}, hidden one by one: rank correlation of the falls with the {claim} over"
        f" {tested.parts} parts (1: same order, 0: none): {each}{several}, {verdict}."
    )


def _claim(explanation: Explanation) -> str | None:
    """The map that the deletion test is compared with; None if it is not drawn."""
    if explanation.contribution_maps:
        return "votes"
    each, word = (
        (explanation.attention, "shares of attention") if explanation.attention else (explanation.maps, "couplings")
    )
    return word if matters(explanation, list(each)[-1]) else None


def about_routings(explanation: Explanation, answer: str) -> list[str]:
    """The meaning of the drawn coupling maps, in at most one line."""
    titles = routing_titles(explanation)
    drawn = {name: each for name, each in explanation.maps.items() if matters(explanation, name)}
    lines = []
    for last in (False, True):
        of_kind = [name for name, each in drawn.items() if (each.grid.feeds is None) == last]
        if of_kind:
            title = titles[of_kind[0]] if len(of_kind) == 1 else "earlier routings"
            share = COUPLINGS[LABELS[drawn[of_kind[0]].over]]
            lines.append(
                f"{title.capitalize()}: {share} {answer if last else f'the capsules that voted for {answer}'}."
            )
    return [" ".join(lines)] if lines else []


def about_uniform(explanation: Explanation) -> list[str]:
    """Which couplings are not drawn, because uniform ones give the same answers, in at most one line."""
    titles = routing_titles(explanation)
    names = [name for name in explanation.uniform if not matters(explanation, name)]
    if not names:
        return []
    which = ", ".join(titles.get(name, name) for name in names)
    most = max(float(explanation.uniform[name].change.abs().max()) for name in names)
    score = "softmax" if explanation.kind == "logits" else WORDINGS[explanation.kind].one
    return [
        f"Not drawn, because uniform couplings in their place change no answer: {which}. The {score} of the class"
        f" changes by at most {most:.2g}."
    ]


def about_line(words: Wording) -> str:
    """What is explained, if it is not a class."""
    return f"Explained: the {words.one} {words.best}."


def caption_of(
    explanation: Explanation, columns: list[MapColumn], *, true_known: bool, asked: bool, total: int
) -> list[str]:
    """How to read the picture, line by line.

    Args:
        explanation: of the images that are drawn.
        columns: its maps.
        true_known: whether a true class is shown.
        asked: whether the explained classes were given.
        total: number of images; the first ones are drawn.
    """
    words = WORDINGS[explanation.kind]
    what = {"labels": "label", "numbers": "number"}.get(explanation.kind, "class")
    answer = f"that {what}" if asked or what == "number" else f"the predicted {what}"
    bar = f"the chosen {what}" if asked else words.best + ("" if what == "number" else ", the prediction")
    of = f" of {answer}"
    lines = [f"Orange bar: {bar}." + (" Green name: the true class." if true_known else "")]
    if explanation.about is not None:
        lines, of = [about_line(words)], ""
    titles = [column.title for column in columns]
    lines.append(
        f"Part hidden: how much the {words.one}{of} falls when a square takes the image's mean colour; blue: it rises."
    )
    if explanation.contributions is not None and VOTES not in titles:
        lines.append("The parts that vote for its classes have no places on the image; parse trees show their votes.")
    if VOTES in titles:
        lines.append(words.votes.maps.format(score=words.one))
        if titles.count(VOTES) > 1:
            lines.append("Red: for that class; blue: against it. Its parts are of several sizes, one column each.")
    lines += about_routings(explanation, answer)
    lines += about_uniform(explanation)
    if explanation.deletion is not None and (claim := _claim(explanation)) is not None:
        lines.append(describe_deletion(explanation.deletion, claim))
    if "class attention" in titles:
        lines.append("Class attention: what the class token takes from each place in its last layer, mean over heads.")
    if "rollout" in titles:
        lines.append(ROLLOUT)
    if any(column.grid.first > column.grid.step for column in columns):
        lines.append("A part is drawn at the centre of its receptive field.")
    if total > len(explanation.scores):
        lines.append(f"The first {len(explanation.scores)} of {total} images.")
    return lines
