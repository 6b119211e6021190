"""Bodies over time: stick figures beside each other, early ones pale."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mereo.data.skeletons import COORDINATES, PARTS, SKELETONS, bodies_of
from mereo.pictures import grid_of_panels, save_figure

FIGURES = 6
"""Frames of a sequence that are drawn."""
_ACROSS = 3
_SHADES = dict(zip(PARTS, ("#c92a2a", "#1c4f8c", "#e8590c", "#1098ad", "#343a40"), strict=True))


def draw_skeletons(
    sequences: Tensor, lengths: Tensor, titles: Sequence[str], path: Path, *, wrong: Sequence[bool] = ()
) -> None:
    """A panel for each sequence: some of its frames from left to right, the right side red and the left one blue.

    Joints of other than known skeletons are drawn without bones.

    Args:
        sequences: (batch, frames, coordinates).
        lengths: frames that are no padding, int64 (batch,).
        titles: of the panels.
        wrong: whether each title is of a misclassified sequence.
    """
    figure, (panels,) = grid_of_panels(len(sequences), _ACROSS, (3.6, 1.9))
    for place, axes in enumerate(panels):
        frames = sequences[place, : int(lengths[place])].float().cpu().numpy()
        draw_skeleton(axes, frames)
        axes.set_title(titles[place], fontsize=8, color="crimson" if wrong and wrong[place] else "black")
    save_figure(figure, path)


def draw_skeleton(axes: Any, frames: Any, weights: Any = None) -> None:
    """Some frames (frames, coordinates) beside each other, as seen from the front.

    Args:
        weights: of each joint in each frame, from 0 to 1, drawn as the size of dots: (frames, bodies, joints).
    """
    bodies, joints = bodies_of(frames.shape[-1])
    chosen = np.linspace(0, len(frames) - 1, min(FIGURES, len(frames))).round().astype(int)
    shown = frames[chosen].reshape(len(chosen), bodies, joints, COORDINATES)
    there = (shown != 0).any(-1)
    if there.any():
        low, high = (at(shown[there][:, :2], 0) for at in (np.min, np.max))
        step = 1.15 * max(high[0] - low[0], 0.5 * (high[1] - low[1]), 1e-6)
    else:
        step = 1.0
    skeleton = SKELETONS.get(joints)
    colours = ["#343a40"] * joints
    for part, members in zip(PARTS, skeleton.parts if skeleton else (), strict=False):
        for joint in members:
            colours[joint] = _SHADES[part]
    for number, (frame, seen) in enumerate(zip(shown, there, strict=True)):
        for body in range(bodies):
            x, y = frame[body, :, 0] + number * step, frame[body, :, 1]
            for one, other in skeleton.bones if skeleton else ():
                if seen[body, one] and seen[body, other]:
                    axes.plot(x[[one, other]], y[[one, other]], color=colours[other], linewidth=1.4)
            sizes = 3 + 45 * weights[chosen[number], body] if weights is not None else np.full(joints, 3.0)
            kept = seen[body]
            axes.scatter(
                x[kept], y[kept], s=sizes[kept], color=[c for c, k in zip(colours, kept, strict=True) if k], zorder=3
            )
        axes.text(number * step + (shown[..., 0][there].mean() if there.any() else 0), 0, f"{chosen[number] + 1}",
                  fontsize=6, color="dimgray", ha="center", va="top", transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_aspect("equal", "datalim")
    axes.set_axis_off()
