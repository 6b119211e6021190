"""Base of all augmentations: parameters are drawn on the CPU for the whole batch, then applied on the device."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.errors import UsageError


@dataclass(frozen=True)
class Operation(ABC):
    """One change of a batch. Subclasses are frozen dataclasses; their fields are written after `name=`.

    Attributes:
        name: on the command line.
        usage: an example of its written form.
        changes: what it changes, of `mereo.models.network.INPUT_KINDS`.
    """

    name: ClassVar[str]
    usage: ClassVar[str]
    changes: ClassVar[str] = "images"

    @abstractmethod
    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        """The random parameters of `count` images. -> (count, p), on the CPU."""

    @abstractmethod
    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        """The changed images, in [0, 1].

        Shapes: images float32 (n, c, h, w), parameters (n, p) on any device -> (n, c, h, w).
        """

    def apply_batch(self, batch: Batch, parameters: Tensor) -> Batch:
        """A batch with changed images, and with correspondingly changed masks, boxes and targets.

        An operation that does not move pixels changes only the images.
        """
        return batch._replace(images=self.apply(batch.images, parameters))

    @classmethod
    def from_text(cls, text: str | None) -> Self:
        """The operation whose fields are written in `text`, separated by colons."""
        values = [] if text is None else text.split(":")
        known = fields(cls)
        if len(values) == len(known):
            try:
                return cls(*(int(v) if f.type is int else float(v) for f, v in zip(known, values, strict=True)))
            except UsageError:
                raise
            except ValueError:
                pass  # not a number: the message below explains how it is written
        written = cls.name if text is None else f"{cls.name}={text}"
        raise UsageError(f"augmentation {written!r} is invalid; write it like {cls.usage!r}.")

    def __str__(self) -> str:
        values = ":".join(f"{getattr(self, field.name):.12g}" for field in fields(self))
        return f"{self.name}={values}" if values else self.name


def uniform_between(low: float, high: float, count: int, generator: torch.Generator | None) -> Tensor:
    """float32 (count, 1), uniform in [low, high)."""
    return torch.rand(count, 1, generator=generator) * (high - low) + low


def whole_between(low: int, high: int, count: int, generator: torch.Generator | None) -> Tensor:
    """int64 (count, 2), uniform in low .. high: a vertical and a horizontal number for each image."""
    return torch.randint(low, high + 1, (count, 2), generator=generator)
