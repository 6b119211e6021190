"""A picture of an explanation: image, scores, couplings, and which parts voted for the class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mereo.core import Grid
from mereo.errors import UsageError
from mereo.explain.deletion import DeletionTest
from mereo.explain.explanation import Explanation, explain
from mereo.explain.layout import make_sheet
from mereo.explain.panels import colour_scale, draw_image, draw_map, draw_scores, draw_title, short
from mereo.explain.places import spread
from mereo.explain.wording import WORDINGS, Wording, bars_of
from mereo.inference.labelled import UNKNOWN
from mereo.inference.predict import class_names
from mereo.models import VisionModel
from mereo.pictures import save_figure

MOST_ROWS = 12
FIRST, LAST, VOTES, HIDDEN, TESTED = "first routing", "last routing", "votes", "occlusion", "part hidden"
AGREES, DISAGREES = 0.6, 0.2
"""Mean rank correlations from which on an explanation is called evidence, and up to which it is not."""
FEW_PARTS = 24
"""Parts, of all images, below which nothing is concluded from a rank correlation."""
SHARE, HEARD, FACTOR = "share of a part's vote", "share of all messages", "factor of a part"
LABELS = {"receivers": SHARE, "senders": HEARD, "both": HEARD, "none": FACTOR}
"""What a coupling is, by the axis over which couplings sum to one."""
SENTENCES = {
    SHARE: "the share of a part's vote for",
    HEARD: "a part's share of the messages to",
    FACTOR: "the mean factor, of either sign, by which a part counts for",
}


@dataclass(frozen=True)
class _MapColumn:
    """One column of maps: its title, the line below, what the colours mean, and the maps of all rows."""

    title: str
    note: str
    label: str
    heat: Tensor
    cells: Tensor
    grid: Grid
    signed: bool = False


def _map_columns(explanation: Explanation) -> list[_MapColumn]:
    columns, maps = [], list(explanation.maps.values())
    earlier = sum(m.grid.feeds is not None for m in maps)
    for place, coupling_map in enumerate(maps, start=1):
        grid, last = coupling_map.grid, coupling_map.grid.feeds is None
        earlier_title = FIRST if earlier == 1 else f"routing {place}"
        last_title = LAST if earlier else "routing"
        title = last_title if last else earlier_title
        kinds = "" if grid.types == 1 else f" x {grid.types}"
        receivers = f"{coupling_map.num_receivers} {'classes' if last else 'capsules'}"
        note = f"{grid.rows} x {grid.columns}{kinds} parts → {receivers}"
        label, cells = LABELS[coupling_map.over], coupling_map.cells
        signed = coupling_map.over == "none" and bool(cells.min() < 0)
        columns.append(_MapColumn(title, note, label, coupling_map.heat, cells, grid, signed=signed))
    for votes in explanation.contribution_maps:
        note, label = "for (red), against (blue)", f"added to the {WORDINGS[explanation.kind].voted}"
        if len(explanation.contribution_maps) > 1:
            note = f"of {votes.grid.rows} x {votes.grid.columns} x {votes.grid.types} parts"
        columns.append(_MapColumn(VOTES, note, label, votes.heat, votes.cells, votes.grid, signed=True))
    for title, shares in explanation.attention.items():
        grid, sides = shares.grid, explanation.sides
        note, label = f"{grid.rows} x {grid.columns} places", "share of all places"
        columns.append(_MapColumn(title, note, label, spread(shares.cells, grid, *sides), shares.cells, grid))
    if explanation.deletion is not None:
        tested = explanation.deletion
        title, note = TESTED, "fall of the score without it"
        columns.append(
            _MapColumn(title, note, "fall of the score", tested.heat, tested.falls, tested.grid, signed=True)
        )
    if explanation.occlusion_map is not None:
        hidden = explanation.occlusion_map
        note, label = f"{hidden.grid.rows} x {hidden.grid.columns} squares hidden", "fall of the score"
        columns.append(_MapColumn(HIDDEN, note, label, hidden.heat, hidden.cells, hidden.grid, signed=True))
    return columns


def _true_classes(true_labels: Tensor | Sequence[int] | None, count: int, num_classes: int) -> list[set[int]]:
    if true_labels is None:
        return [set() for _ in range(count)]
    labels = torch.as_tensor(true_labels)
    if labels.dim() not in {1, 2} or len(labels) < count or labels.is_floating_point():
        raise UsageError(
            f"true_labels is of shape {tuple(labels.shape)}; it must be whole numbers, one or several per image."
        )
    rows = [set(row) - {UNKNOWN} for row in labels.reshape(len(labels), -1)[:count].tolist()]
    if not all(0 <= c < num_classes for row in rows for c in row):
        raise UsageError(f"true_labels has values outside 0 .. {num_classes - 1}.")
    return rows


def check_titles(titles: Sequence[str] | None, count: int) -> None:
    """UsageError unless there is one title for each image, or none at all."""
    if titles is not None and len(titles) != count:
        raise UsageError(f"titles has {len(titles)} lines for {count} images; give one for each.")


def draw_explanation(
    model: VisionModel,
    images: Tensor,
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    true_labels: Tensor | Sequence[int] | None = None,
    classes: Tensor | None = None,
    shown: Tensor | None = None,
) -> Path:
    """Draw the explanations of a few images, one a row, as PNG.

    Columns: the image; the scores of the classes (the ten highest of more); for every routing whose senders have a
    place, its couplings; which parts voted for the class and which against it; the reconstruction. For a network
    without capsules, what hiding each place of the image costs.

    Args:
        model: any classifier.
        images: in [0, 1], not normalised; of more than 12 the first 12 are drawn, and the caption states this.
        path: of the file.
        titles: a line above each image.
        true_labels: the class of each image, -1 where it is not known, or several an image: (batch,) or (batch, k).
        classes: which class to explain for each image, (batch,); the predicted one when None.
        shown: the images at a multiple of their size, to draw in their place.

    Shapes: images (batch, channels, height, width), shown (batch, channels, k height, k width).
    """
    path, total = Path(path), len(images)
    check_titles(titles, total)
    images = images[:MOST_ROWS]
    explanation = explain(model, images, classes=None if classes is None else classes[:MOST_ROWS])
    num_classes, words = explanation.scores.shape[1], WORDINGS[explanation.kind]
    true = _true_classes(true_labels, len(images), num_classes)
    model = getattr(model, "_orig_mod", model)
    names, bars = list(class_names(model)), bars_of(explanation.scores, explanation.kind)

    columns = _map_columns(explanation)
    rebuilt = explanation.rebuilt
    pictures = 1 + len(columns) + (rebuilt is not None)
    scales = [colour_scale(column.cells, signed=column.signed) for column in columns]
    voted = explanation.contributions is not None
    caption = _caption(explanation, columns, words, any(true), classes is not None, total, voted=voted)
    caption += [
        f"{c.title.capitalize()}: all shares lie between {c.cells.min():.3g} and {c.cells.max():.3g}, so its scale does"
        " not start at 0."
        for c, scale in zip(columns, scales, strict=True)
        if scale.norm.vmin > 0
    ]
    height, width = images.shape[-2:]
    letters = max(len(short(name)) for name in names)
    sheet = make_sheet(len(images), (height, width), pictures, bool(columns), titles is not None, letters, caption)
    for i, row in enumerate(sheet.axes):
        draw_image(row[0], images[i] if shown is None else shown[i])
        if titles is not None:
            draw_title(row[0], titles[i])
        bounded = explanation.kind != "outputs"
        draw_scores(row[1], bars[i], int(explanation.explained[i]), true[i], names, bounded=bounded)
        row[1].tick_params(labelbottom=i == len(sheet.axes) - 1)
        for axes, column, scale in zip(row[2:], columns, scales, strict=False):
            numbers = "+.2f" if column.signed else ".2f"
            draw_map(axes, images[i], column.heat[i], column.cells[i], column.grid, scale, numbers)
        if rebuilt is not None:
            draw_image(row[-1], rebuilt[i])
    heads = [("image", ""), words.column, *[(c.title, c.note) for c in columns]]
    sheet.head([*heads, ("rebuilt", "from that capsule")] if rebuilt is not None else heads)
    for place, (column, scale) in enumerate(zip(columns, scales, strict=True), start=2):
        sheet.scale_bar(place, scale, column.label)
    save_figure(sheet.figure, path)
    return path


def describe_deletion(tested: DeletionTest, claim: str) -> str:
    """How far an explanation and the deletion test agree, in a sentence."""
    each = ", ".join(f"{r:+.2f}" for r in tested.correlation.tolist()[:MOST_ROWS])
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


def _about_routings(explanation: Explanation, answer: str) -> list[str]:
    """What the maps of couplings show, in at most one line."""
    maps = list(explanation.maps.values())
    if not maps:
        return []
    share = SENTENCES[LABELS[maps[-1].over]]
    last, earlier = maps[-1].grid.feeds is None, sum(m.grid.feeds is not None for m in maps)
    if not last:
        return [f"Routing: {share} the capsules that voted for {answer}."]
    if not earlier:
        return [f"Routing: {share} {answer}."]
    title = FIRST if earlier == 1 else "earlier routings"
    return [f"{title.capitalize()}: {share} the capsules that voted for {answer}; last routing: for {answer} itself."]


def _caption(
    explanation: Explanation,
    columns: list[_MapColumn],
    words: Wording,
    true_known: bool,
    asked: bool,
    total: int,
    *,
    voted: bool,
) -> list[str]:
    """How to read the picture."""
    answer = "that class" if asked else "the predicted class"
    bar = "the chosen class" if asked else f"{words.best}, the prediction"
    lines = [f"Orange bar: {bar}." + (" Green name: the true class." if true_known else "")]
    titles = [column.title for column in columns]
    lines += _about_routings(explanation, answer)
    if HIDDEN in titles:
        lines += [
            "Occlusion: how much that score falls when a square takes the image's mean colour; blue: it rises.",
            "The parts that vote for its classes have no places on the image; parse trees show their votes."
            if voted
            else "This network has no routing to its classes, so there are no votes to draw.",
        ]
    if VOTES in titles:
        lines.append(words.votes)
        if titles.count(VOTES) > 1:
            lines.append("Red: for that class; blue: against it. Its parts are of several sizes, one column each.")
    if explanation.deletion is not None:
        lines.append(describe_deletion(explanation.deletion, "votes" if VOTES in titles else _compared(titles)))
    if "class attention" in titles:
        lines.append("Class attention: what the class token takes from each place in its last layer, mean over heads.")
    if "rollout" in titles:
        lines.append(
            "Rollout: what each place counts for the output through all layers of attention; what convolutions and"
            " channels move does not count."
        )
    if any(column.grid.first > column.grid.step for column in columns):
        lines.append("A part is drawn at the centre of its receptive field.")
    if total > MOST_ROWS:
        lines.append(f"The first {MOST_ROWS} of {total} images.")
    return lines
