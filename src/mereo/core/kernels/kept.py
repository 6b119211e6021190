"""Tensors that depend only on sizes, made once and kept for later calls."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

from mereo.core.kernels.transforms import operations_are_watched

P = ParamSpec("P")
R = TypeVar("R")


def _may_keep() -> bool:
    """Whether tables may be kept from call to call: a traced program makes its own."""
    traced = torch.compiler.is_compiling() or torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
    return not (traced or operations_are_watched())


def kept(maxsize: int = 64) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep what a function returned for the last `maxsize` arguments, which can be hashed.

    The tensors can be used in training even if they were made in inference mode, whose own tensors cannot. A program
    that is traced has them as constants.
    """

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        @lru_cache(maxsize)
        def made(*args: P.args, **options: P.kwargs) -> R:
            with torch.inference_mode(False):
                return make(*args, **options)

        @wraps(make)
        def get(*args: P.args, **options: P.kwargs) -> R:
            return made(*args, **options) if _may_keep() else make(*args, **options)  # type: ignore[arg-type]

        return get

    return decorate
