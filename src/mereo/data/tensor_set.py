"""Sets whose samples are rows of a few tensors."""

from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mereo.data.images import Images, identity


class TensorSet(Images):
    """Samples that are rows of tensors, without classes that a choice could be stratified by.

    Attributes:
        of_samples: the names of its tensors with a row for each sample; all but the first may be None.
        of_all: the names of those that all samples share.
    """

    of_samples: ClassVar[tuple[str, ...]]
    of_all: ClassVar[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(getattr(self, self.of_samples[0]))

    @property
    def strata(self) -> Tensor:
        return torch.zeros(len(self), dtype=torch.int64)

    def describe(self) -> dict[str, Any]:
        """The identity of the data as plain values; it changes if any value of a tensor changes."""
        tensors = (getattr(self, name) for name in (*self.of_all, *self.of_samples))
        return identity(len(self), self.image_shape[1:], *tensors)

    def _changed(self, names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Self:
        other = copy(self)
        for name in names:
            if (values := getattr(self, name)) is not None:
                setattr(other, name, change(values))
        return other

    def to(self, device: torch.device | str) -> Self:
        return self._changed((*self.of_all, *self.of_samples), lambda tensor: tensor.to(device))

    def subset(self, indices: Tensor) -> Self:
        return self._changed(self.of_samples, lambda tensor: tensor[indices.to(tensor.device)])
