"""What the dimensions of a class capsule mean: each is changed in steps, and the pose is decoded."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.errors import MereoError, UsageError, check_positive
from mereo.explain.observation import Observation
from mereo.explain.target import chosen_classes
from mereo.inference.mode import evaluating
from mereo.layers.capsules import mask_poses
from mereo.models import VisionModel


@dataclass(frozen=True)
class PoseSweep:
    """Images decoded from moved class capsules.

    Attributes:
        explained: the class whose capsule was moved, int64 (batch,).
        offsets: how far, (steps,); 0 is among them.
        images: (batch, pose, steps, channels, height, width), in the decoder's range.
    """

    explained: Tensor
    offsets: Tensor
    images: Tensor


def why_no_sweep(model: VisionModel) -> str | None:
    """Why the poses of a model cannot be swept; None if they can."""
    if getattr(model, "decoder", None) is None:
        return f"{type(model).__name__} has no decoder"
    return None if model.has_capsules else f"{type(model).__name__} has no class capsules"


def pose_sweeps(
    observation: Observation, classes: Tensor | None = None, *, reach: float = 0.25, step: float = 0.05
) -> PoseSweep:
    """Move each dimension of a class capsule in steps, and decode every one of these poses.

    image[d, n] = decoder(v_class + n step e_d),   n step in [-reach, reach]

    Args:
        observation: from `observe`; the model needs a decoder.
        classes: which class's capsule to move for each image, int64 (batch,); the predicted one when None.
        reach: the largest offset.
        step: between neighbouring offsets, at most `reach`.

    Reference: arXiv:1710.09829, section 5.1, whose reach and step are the defaults.
    """
    check_positive(reach=reach, step=step)
    if step > reach:
        raise UsageError(f"step is {step}; it must be at most reach, {reach}.")
    if (reason := why_no_sweep(observation.model)) is not None:
        raise UsageError(f"no pose can be swept: {reason}.")
    decoder: Any = getattr(observation.model, "decoder", None)
    assert decoder is not None and observation.capsules is not None
    chosen, poses = chosen_classes(observation.scores, classes), observation.capsules.pose
    most = int(reach / step + 1e-6)
    offsets = step * torch.arange(-most, most + 1, device=poses.device, dtype=poses.dtype)
    swept = []
    with evaluating(decoder), torch.no_grad():
        # One dimension at a time: decoders that grow maps need much memory for many poses at once.
        for dimension in range(poses.shape[-1]):
            moved = poses.unsqueeze(1).repeat(1, len(offsets), 1, 1)
            moved[..., dimension] += offsets.view(1, -1, 1)
            decoded = decoder(mask_poses(moved.flatten(0, 1), chosen.repeat_interleave(len(offsets))))
            swept.append(decoded.unflatten(0, (len(poses), len(offsets))))
    images = torch.stack(swept, 1)
    if not bool(images.isfinite().all()):
        raise MereoError("the decoder's images are not finite: the network's weights are damaged.")
    return PoseSweep(chosen, offsets, images)
