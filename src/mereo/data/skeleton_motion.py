"""Augmentations of sequences of joints: another speed, another view, the other side, noise."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.operation import Operation, uniform_between
from mereo.data.skeletons import COORDINATES, SKELETONS, bodies_of
from mereo.errors import UsageError, check_not_negative, check_positive


class SequenceOperation(Operation):
    """A change of joints (n, frames, bodies, joints, 3); joints and frames of zeros are absent and stay so."""

    changes: ClassVar[str] = "sequences"

    def apply_batch(self, batch: Batch, parameters: Tensor) -> Batch:
        frames = batch.sequences
        joints = frames.unflatten(-1, (*bodies_of(frames.shape[-1]), COORDINATES))
        return batch._replace(sequences=self.apply(joints, parameters.to(frames.device)).flatten(2))


def _present(joints: Tensor) -> tuple[Tensor, Tensor]:
    """Which joints there are, and the middle of those of a sequence: bool (..., 1) and (n, 1, 1, 1, 3)."""
    there = (joints != 0).any(-1, keepdim=True)
    return there, joints.sum((1, 2, 3), keepdim=True) / there.sum((1, 2, 3), keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Turn(SequenceOperation):
    """Turn bodies about the vertical through their middle, by an angle in +-degrees."""

    degrees: float
    name: ClassVar[str] = "turn"
    usage: ClassVar[str] = "turn=30"

    def __post_init__(self) -> None:
        check_not_negative(turn=self.degrees)

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(-self.degrees, self.degrees, count, generator).deg2rad()

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        there, middle = _present(images)
        x, y, z = (images - middle).unbind(-1)
        cosine, sine = (each.view(-1, 1, 1, 1) for each in (parameters.cos(), parameters.sin()))
        return (torch.stack((cosine * x + sine * z, y, cosine * z - sine * x), -1) + middle) * there


@dataclass(frozen=True)
class Mirror(SequenceOperation):
    """Exchange left and right with probability 1/2: x -> -x about the middle, and each joint for its other side."""

    name: ClassVar[str] = "mirror"
    usage: ClassVar[str] = "mirror"

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        if bodies_of(width)[1] not in SKELETONS:
            raise UsageError(
                f"augment has 'mirror', and which of the {width // COORDINATES} joints are left and right is known for"
                f" {' or '.join(map(str, sorted(SKELETONS)))} joints only; leave it out."
            )
        return (torch.rand(count, 1, generator=generator) < 0.5).float()

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        _, middle = _present(images)
        sign = torch.tensor([-1.0, 1.0, 1.0], device=images.device)
        other = images[..., SKELETONS[images.shape[3]].mirrored, :]
        # A joint may be absent on one side only, so what is absent moves too.
        moved = torch.where((other != 0).any(-1, keepdim=True), other * sign + middle * (1 - sign), 0)
        return torch.where(parameters.view(-1, 1, 1, 1, 1) > 0, moved, images)


@dataclass(frozen=True)
class Speed(SequenceOperation):
    """Play a sequence faster or slower by a factor in low:high, frames between others on straight lines."""

    low: float = field()
    high: float = field()
    name: ClassVar[str] = "speed"
    usage: ClassVar[str] = "speed=0.8:1.25"

    def __post_init__(self) -> None:
        check_positive(speed=self.low)
        if self.high < self.low:
            raise UsageError(f"speed is {self.low:g}:{self.high:g}; the second factor must be at least the first.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(self.low, self.high, count, generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        """The frames at `parameters`, places in the sequence that need not be whole.

        Shapes: images (n, frames, coordinates), parameters (n, frames).
        """
        low = parameters.floor().long()
        one, other = (
            images.gather(1, rows.unsqueeze(-1).expand_as(images)) for rows in (low, parameters.ceil().long())
        )
        # A body that comes or goes is not drawn halfway to the origin.
        mixed = one + (parameters - low).unsqueeze(-1) * (other - one)
        return torch.where((one != 0) & (other != 0), mixed, one)

    def apply_batch(self, batch: Batch, parameters: Tensor) -> Batch:
        frames, lengths, speed = batch.sequences, batch.lengths, parameters.to(batch.sequences.device)
        assert lengths is not None
        steps = torch.arange(frames.shape[1], device=frames.device)
        made = (lengths / speed.squeeze(1)).round().long().clamp(1, frames.shape[1])
        places = (steps * speed).minimum((lengths - 1).unsqueeze(1).to(speed))
        valid = (steps < made.unsqueeze(1)).unsqueeze(-1)
        return batch._replace(sequences=self.apply(frames, places) * valid, lengths=made)


@dataclass(frozen=True)
class JointNoise(SequenceOperation):
    """Add normal noise of a standard deviation, in the units of the data, to all coordinates."""

    amount: float
    name: ClassVar[str] = "joint_noise"
    usage: ClassVar[str] = "joint_noise=0.01"

    def __post_init__(self) -> None:
        check_not_negative(joint_noise=self.amount)

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return self.amount * torch.randn(count, height, width, generator=generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        there, _ = _present(images)
        return (images + parameters.view_as(images)) * there
