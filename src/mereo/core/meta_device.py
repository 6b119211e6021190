"""Modules without values: shapes and types on the meta device, made in a moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FILLS = {Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_}
_DRAWS = {torch.randn, torch.rand}


class _SkipInitialisation(TorchFunctionMode):
    """Leaves out initial values.

    To draw a tensor that has no memory, PyTorch imports its compiler, which takes longer than building most networks.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS or getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        if func in _DRAWS:
            kwargs.pop("generator", None)
            return torch.empty(*args, **kwargs)
        if func is torch.eye:
            return torch.empty(args[0], args[-1], **kwargs)
        return func(*args, **kwargs)


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Inside this block tensors are made on the meta device, and nothing draws their initial values.

    with on_meta_device():
        shapes = {name: p.shape for name, p in MyNetwork().named_parameters()}
    """
    with torch.device("meta"), _SkipInitialisation():
        yield
