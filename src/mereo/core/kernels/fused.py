"""Passes of routing in compiled C++: `dynamic_routing.cpp`."""

from ctypes import c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from mereo.core.kernels.library import at, entry

_pass = entry("mereo_pass", *[c_void_p] * 5, *[c_int64] * 6, c_int, c_float)
_pass_gradients = entry("mereo_pass_gradients", *[c_void_p] * 7, *[c_int64] * 6, c_int, c_float, c_int64)


class FusedPasses:
    """One pass of routing after another over the same children, as `StreamedPasses`: float32, on a CPU, no prior.

    A backward pass makes only the gradient of `agreed`: the gradients of children and weight are made for all
    passes together.

    Cost: 2 S R d D FLOPs an image for a pass, forward or backward, and 6 S R d D for the gradients of all passes. Live
    at once, beyond children, parents and gradients: the votes of at most four children for the images of one vector, on
    each thread.
    """

    def __init__(self, children: Tensor, weight: Tensor, leaky: bool, share: float) -> None:
        self.children, self.weight = children.float().contiguous(), weight.float().contiguous()
        receivers, senders, d_in, d_out = weight.shape
        self.parents = (children.shape[0], receivers, d_out)
        self.sizes = (children.shape[0], senders, receivers, d_in, d_out)
        self.couples = (int(leaky), share)

    def _run(self, agreed: Tensor | None, grad: Tensor | None) -> Tensor:
        assert _pass is not None
        out = self.children.new_empty(self.parents)
        pointers = map(at, (self.children, self.weight, agreed, grad, out))
        _pass(*pointers, *self.sizes, torch.get_num_threads(), *self.couples)
        return out

    def forward(self, agreed: Tensor | None) -> Tensor:
        """The sums of the votes: sum_s c_rs vote_rs. Shapes: agreed (batch, receivers, d_out) or None -> the same."""
        return self._run(None if agreed is None else agreed.contiguous(), None)

    def start_backward(self) -> None:
        """Forget the passes that went back before."""
        self.agreed: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.alike: Tensor | None = None

    def backward(self, agreed: Tensor | None, grad: Tensor) -> Tensor | None:
        """Gradient of `forward` at `agreed` with respect to it; `gradients` remembers the pass."""
        if agreed is None:
            self.alike = grad if self.alike is None else self.alike + grad
            return None
        self.agreed.append(agreed.contiguous())
        self.grads.append(grad.contiguous())
        return self._run(self.agreed[-1], self.grads[-1])

    def gradients(self) -> tuple[Tensor, Tensor, None]:
        """The gradients of children and weight; the prior has none."""
        assert _pass_gradients is not None
        # Without images or parents the library writes nothing.
        make = torch.empty_like if 0 not in (*self.children.shape, *self.parents) else torch.zeros_like
        d_children, d_weight = make(self.children), make(self.weight)
        agreed = torch.stack(self.agreed) if self.agreed else None
        grads = torch.stack(self.grads) if self.grads else None
        alike = None if self.alike is None else self.alike.contiguous()
        pointers = map(at, (self.children, self.weight, agreed, grads, alike, d_children, d_weight))
        _pass_gradients(*pointers, *self.sizes, torch.get_num_threads(), *self.couples, len(self.agreed))
        return d_children, d_weight, None
