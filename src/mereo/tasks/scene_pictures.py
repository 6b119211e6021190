"""Scenes with a sentence each: two concepts, the arrow of a predicate between them, and what was seen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mereo.pictures import grid_of_panels, save_figure

_ACROSS, _CANVAS = 6, 3
_RIGHT, _WRONG, _PLAIN = "#2b8a3e", "#c92a2a", "#1c4f8c"
_PLACES = ((0.2, 0.55), (0.8, 0.55))


class Word(NamedTuple):
    """A word of a sentence, its probability if it was predicted, and the true word if there is one."""

    text: str
    share: float | None = None
    true: str | None = None

    @property
    def colour(self) -> str:
        return _PLAIN if self.true is None else _RIGHT if self.true == self.text else _WRONG

    @property
    def label(self) -> str:
        return self.text if self.share is None else f"{self.text}\n{100 * self.share:.0f} %"


def draw_scenes(regions: Tensor, sentences: Sequence[Sequence[Word]], path: Path, side: int = 0) -> None:
    """A panel for each scene: subject, predicate and object with their probabilities, above what the regions show.

    Correct words are green and wrong ones red, with the true sentence below.

    Args:
        regions: (batch, regions, features).
        sentences: subject, predicate and object of each scene.
        side: pixels of a side of the images in the regions, which are followed by their boxes, broken for the object;
            0 for other features, which are drawn as colours.
    """
    figure, (panels,) = grid_of_panels(len(sentences), _ACROSS, (2.0, 2.1 if side else 1.7))
    limit = max(float(regions[:, :2].abs().max()), 1e-6) if len(regions) else 1.0
    for axes, scene, sentence in zip(panels, regions.float().cpu(), sentences, strict=True):
        axes.set_axis_off()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        if side:
            _picture(axes, scene, sentence, side)
        else:
            _features(axes, scene, sentence, limit)
        if any(word.true not in (None, word.text) for word in sentence):
            true = " ".join(word.true or "" for word in sentence)
            axes.text(0.5, 0.0, f"true: {true}", ha="center", va="bottom", fontsize=7, color="dimgray")
    save_figure(figure, path)


def _features(axes: Any, scene: Tensor, sentence: Sequence[Word], limit: float) -> None:
    subject, predicate, other = sentence
    for word, (x, y), features in zip((subject, other), _PLACES, scene, strict=False):
        axes.text(
            x, y, word.label, ha="center", va="center", fontsize=8, color="white",
            bbox={"boxstyle": "round,pad=0.4", "facecolor": word.colour, "edgecolor": "none"},
        )  # fmt: skip
        strip = axes.inset_axes((x - 0.18, 0.14, 0.36, 0.14))
        columns = -(-len(features) // 3)
        padded = torch.nn.functional.pad(features, (0, 3 * columns - len(features)))
        strip.imshow(padded.view(3, columns).numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        strip.set(xticks=[], yticks=[])
    arrow = {"arrowstyle": "-|>", "color": predicate.colour, "connectionstyle": "arc3,rad=-0.35", "lw": 1.6}
    axes.annotate("", (_PLACES[1][0], 0.72), (_PLACES[0][0], 0.72), arrowprops=arrow)
    share = "" if predicate.share is None else f"  {100 * predicate.share:.0f} %"
    axes.text(0.5, 0.97, f"{predicate.text}{share}", ha="center", va="top", fontsize=8, color=predicate.colour)


def _picture(axes: Any, scene: Tensor, sentence: Sequence[Word], side: int) -> None:
    """The picture that the regions were cut from, its boxes, and the sentence above."""
    from matplotlib.patches import Rectangle

    wide = _CANVAS * side
    canvas = torch.zeros(wide, wide)
    view = axes.inset_axes((0.12, 0.12, 0.76, 0.72))
    for features, word, tag in zip(scene[:2], (sentence[0], sentence[2]), ("subject", "object"), strict=True):
        box = (features[-4:] * wide).round().long().clamp(0, wide - side).tolist()
        left, top = box[0], box[1]
        canvas[top : top + side, left : left + side] = features[: side * side].view(side, side)
        frame: dict[str, Any] = {
            "edgecolor": word.colour,
            "facecolor": "none",
            "lw": 1.5,
            "ls": "-" if tag == "subject" else "--",
        }
        view.add_patch(Rectangle((left - 0.5, top - 0.5), side, side, **frame))
    view.imshow(canvas.numpy(), cmap="gray_r", vmin=0, vmax=1)
    view.set(xticks=[], yticks=[])
    x = (0.18, 0.5, 0.82)
    for place, word in zip(x, sentence, strict=True):
        axes.text(place, 1.0, word.label, ha="center", va="top", fontsize=8, color=word.colour)
