"""Attention to the keys of chosen columns in compiled C++, `column_attention.cpp`: forward, in float32, on a CPU.

Cost: 2 P (D + E) FLOPs for P pairs of a query and a key that it keeps. Extra memory at any time: the
scores of one query on each thread.
"""

from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor

from mereo.core.kernels import library
from mereo.core.kernels.library import at, entry
from mereo.core.kernels.transforms import fallback_reason

_run = entry("mereo_column_attention", *[c_void_p] * 7, *[c_int64] * 9, c_float)


def cannot_run(*tensors: Tensor) -> str | None:
    """Why the compiled pass cannot run for these tensors; None if it can."""
    if library.missing is not None:
        return library.missing
    if any(x.device.type != "cpu" or x.dtype != torch.float32 for x in tensors):
        return "it computes in float32 on a CPU"
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "it has no gradient"
    if torch.compiler.is_compiling():
        return "the model is being compiled"
    return fallback_reason()


def column_attention(
    q: Tensor, k: Tensor, v: Tensor, kept: Tensor, lengths: Tensor, weight: Tensor, scale: float
) -> Tensor:
    """weight * softmax over the keys of the kept columns of each query; zeros where it keeps none.

    Shapes: q (batch, heads, queries, dim), k (batch, heads, keys, dim), v (batch, heads, keys, pose), kept bool (batch,
        heads, queries, columns), lengths int64 (batch, queries), how many first keys are seen, weight (batch, heads,
        queries) -> (batch, heads, queries, pose).
    """
    assert _run is not None
    batch, heads, queries, dim = q.shape
    given = [x.detach().contiguous() for x in (q, k, v, weight, kept, lengths)]
    out = q.new_empty(batch, heads, queries, v.shape[3])
    if out.numel():
        sizes = (batch, heads, queries, k.shape[2], dim, v.shape[3], kept.shape[3])
        pairs = int(kept.sum()) * k.shape[2] // max(kept.shape[3], 1)
        _run(*map(at, (*given, out)), *sizes, pairs, torch.get_num_threads(), scale)
    return out
