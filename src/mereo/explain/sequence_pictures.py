"""Which joints of a sequence a score depends on, and when: the size of its gradient."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.data.sequence_files import to_predict
from mereo.data.skeletons import COORDINATES, PARTS, SKELETONS
from mereo.inference.mode import evaluating
from mereo.inference.predict import class_names
from mereo.pictures import grid_of_panels, save_figure
from mereo.tasks.skeleton_pictures import draw_skeleton

MOST = 6
"""Sequences on a picture, two panels each."""


def joint_saliency(model: Any, sequences: Tensor, lengths: Tensor, classes: Tensor | None = None) -> Tensor:
    """|d s / d x| of each joint in each frame: the length of the gradient of a score with respect to its place.

    Args:
        classes: whose scores are explained, int64 (batch,); the predicted ones when None.

    Shapes: sequences (batch, frames, coordinates), lengths int64 (batch,) -> (batch, frames, bodies, joints).
    """
    with evaluating(model), torch.enable_grad():
        inputs = sequences.detach().clone().requires_grad_()
        scores = model(inputs, lengths)
        chosen = scores.argmax(1) if classes is None else classes.to(scores.device)
        (gradient,) = torch.autograd.grad(scores.gather(1, chosen.unsqueeze(1)).sum(), inputs)
    found: Tensor = gradient.unflatten(-1, (model.bodies, model.joints, COORDINATES)).norm(dim=-1)
    return found


def draw_sequences(
    model: Any, names: Sequence[str], each: Sequence[Tensor], path: Path, target: int | None = None
) -> Path:
    """Two panels for each sequence: bodies over time with large dots at joints that matter, and joints by frames.

    Args:
        target: the class that is explained; the predicted one when None. At most 6 sequences are drawn.
    """
    shown = to_predict(names, each, model.input_shape).batch(torch.arange(min(len(names), MOST)))
    shown = shown.to(next(model.parameters()).device)
    assert shown.lengths is not None
    with evaluating(model), torch.no_grad():
        shares = model(shown.sequences, shown.lengths).float().softmax(-1)
    classes = shares.argmax(1) if target is None else torch.full_like(shown.lengths, target)
    found = joint_saliency(model, shown.sequences, shown.lengths, classes).float().cpu()
    figure, (panels,) = grid_of_panels(2 * len(classes), 2, (4.2, 2.2))
    known = SKELETONS.get(model.joints)
    order = [joint for part in known.parts for joint in part] if known else list(range(model.joints))
    for place, (number, length) in enumerate(zip(classes.tolist(), shown.lengths.tolist(), strict=True)):
        left, right = panels[2 * place : 2 * place + 2]
        weights = found[place, :length] / found[place].max().clamp(min=1e-12)
        draw_skeleton(left, shown.sequences[place, :length].float().cpu().numpy(), weights.numpy())
        left.set_title(f"{names[place]}: {class_names(model)[number]} {float(shares[place, number]):.0%}", fontsize=8)
        edges = (0.5, length + 0.5, model.joints - 0.5, -0.5)  # frames are counted from 1
        right.imshow(weights.amax(1)[:, order].T.numpy(), aspect="auto", cmap="magma_r", vmin=0, vmax=1, extent=edges)
        if known:
            ends = [sum(map(len, known.parts[:number])) for number in range(len(PARTS))]
            middles = [end + (len(part) - 1) / 2 for end, part in zip(ends, known.parts, strict=True)]
            right.set_yticks(middles, PARTS, fontsize=7)
            for end in ends[1:]:
                right.axhline(end - 0.5, color="white", linewidth=1.5)
        else:
            right.set_ylabel("joint", fontsize=7)
        right.tick_params(labelsize=7)
        right.set_xlabel("frame", fontsize=7)
    save_figure(figure, path)
    return path
