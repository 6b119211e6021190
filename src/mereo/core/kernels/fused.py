"""Passes of routing in compiled C++: `dynamic_routing.cpp`, loaded from the library that the build of mereo made.

The library is plain C: no header of torch, no compiler at run time. Installing mereo builds it where a C++ compiler is
found; where none is, the reason lies in a text file beside it and `missing` holds it.
"""

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

_HERE = Path(__file__).parent
SOURCES = [_HERE / name for name in ("dynamic_routing.cpp", "lanes.hpp", "products.hpp")]
LIBRARY = _HERE / "_dynamic_routing.so"
NOTE = _HERE / "_dynamic_routing.txt"
"""What the build left: the digest of the source that it compiled, or why it compiled nothing."""

REMEDY = "install a C++ compiler and mereo again (in a checkout: pip install -e .)"


def digest() -> str:
    """Of the source, so that a library built from another one is known."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    note = NOTE.read_text().strip() if NOTE.is_file() else "mereo was installed without building it"
    if not LIBRARY.is_file():
        return None, f"the compiled library is missing: {note}; {REMEDY}"
    if note != digest():
        return None, f"the compiled library is older than its source; {REMEDY}"
    try:
        return ctypes.CDLL(str(LIBRARY)), None
    except OSError as error:
        return None, f"the compiled library does not load ({error}); {REMEDY}"


_library, missing = _load()
"""The library, and why it cannot be used (None where it can)."""

_P, _N = ctypes.c_void_p, ctypes.c_int64


def _entry(name: str, tensors: int, *more: type) -> Callable[..., None] | None:
    if _library is None:
        return None
    function = _library[f"{name}_{_library.mereo_isa()}"]
    function.argtypes = [_P] * tensors + [_N] * 5 + [ctypes.c_int, ctypes.c_float, _N, *more]
    function.restype = None
    return function


_forward, _backward = _entry("mereo_pass_forward", 4), _entry("mereo_pass_backward", 7, ctypes.c_int)


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


class FusedPasses:
    """One pass of routing after another over the same children, as `StreamedPasses`: float32, on a CPU, no prior.

    Cost of a pass: 2 S R d D FLOPs an image forward, 6 S R d D backward. Live at once, beside children, parents and
    gradients: the votes of one child for the images of one vector (receivers d_out of them) on each thread.
    """

    def __init__(self, children: Tensor, weight: Tensor, leaky: bool, share: float) -> None:
        self.children, self.weight = children.float().contiguous(), weight.float().contiguous()
        receivers, senders, d_in, d_out = weight.shape
        self.parents = (children.shape[0], receivers, d_out)
        self.sizes = (children.shape[0], senders, receivers, d_in, d_out, int(leaky), share)

    def forward(self, agreed: Tensor | None) -> Tensor:
        """What the parents become: sum_s c_rs vote_rs. Shapes: agreed (batch, receivers, d_out) or None -> the same."""
        assert _forward is not None
        agreed = None if agreed is None else agreed.contiguous()
        parents = self.children.new_empty(self.parents)
        pointers = (_at(self.children), _at(self.weight), _at(agreed), _at(parents))
        _forward(*pointers, *self.sizes, torch.get_num_threads())
        return parents

    def start_backward(self) -> None:
        """Make room for the gradients: the first `backward` writes them, the others add."""
        self.d_children, self.d_weight = torch.empty_like(self.children), torch.empty_like(self.weight)
        self.fresh = True

    def backward(self, agreed: Tensor | None, grad: Tensor) -> Tensor | None:
        """Gradient of `forward` at `agreed`: adds to those of children and weight, returns that of `agreed`."""
        assert _backward is not None
        agreed, grad = None if agreed is None else agreed.contiguous(), grad.contiguous()
        d_agreed = None if agreed is None else torch.empty_like(grad)
        inputs = (self.children, self.weight, agreed, grad)
        pointers = map(_at, (*inputs, self.d_children, self.d_weight, d_agreed))
        _backward(*pointers, *self.sizes, torch.get_num_threads(), int(self.fresh))
        self.fresh = False
        return d_agreed

    def gradients(self) -> tuple[Tensor, Tensor, None]:
        """Those of children and weight; there is no prior."""
        return self.d_children, self.d_weight, None
