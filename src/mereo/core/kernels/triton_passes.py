"""Passes of routing as Triton kernels, for CUDA: agree, couple and combine of one pass in one launch.

A program takes a few children; it makes their votes for a block of images on chip, couples them and adds their
contributions to parents of its own, which are summed afterwards: no atomics, so the result is the same every time. The
backward program goes over all blocks of images, so that the gradient of a child's transforms is written once.
Half precision is read as it is; sums are float32.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

LARGEST_PARENTS = 4096
"""How many entries all parents of an image may have together, padded: votes of one child live in registers."""
_HAS_TRITON = find_spec("triton") is not None


def missing() -> str | None:
    """Why no kernel can run on this machine; None if they can."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return None if _HAS_TRITON else "triton is not installed; install it"


def _padded(n: int) -> int:
    return 1 << (n - 1).bit_length()


def too_large(weight: Tensor) -> str | None:
    """Why these sizes do not fit on chip; None if they do."""
    receivers, _, d_in, d_out = weight.shape
    entries = _padded(receivers) * _padded(d_out)
    if entries > LARGEST_PARENTS or d_in > 64:
        return f"{receivers} parents of {d_out} from children of {d_in} do not fit on chip"
    return None


class TritonPasses:
    """One pass of routing after another over the same children, as `StreamedPasses`: no prior."""

    def __init__(self, children: Tensor, weight: Tensor, leaky: bool, share: float) -> None:
        self.children, self.weight = children.contiguous(), weight.contiguous()
        self.batch, senders = children.shape[:2]
        receivers, _, d_in, d_out = weight.shape
        self.parents = (self.batch, receivers, d_out)
        entries = _padded(receivers) * _padded(d_out)
        images = max(1, min(_padded(self.batch), 4096 // entries, 32))
        # About one program a processor of a large GPU; more would only cost partial sums.
        self.chunk = -(-senders // 128)
        self.programs = -(-senders // self.chunk)
        self.sizes = (self.batch, senders, receivers, d_in, d_out)
        self.options = {
            "LEAKY": leaky,
            "SHARE": share,
            "CHUNK": self.chunk,
            "BLOCK": images,
            "R_PAD": _padded(receivers),
            "D_PAD": _padded(d_in),
            "E_PAD": _padded(d_out),
        }

    def forward(self, agreed: Tensor | None) -> Tensor:
        """The sums of the votes: sum_s c_rs vote_rs. Shapes: agreed (batch, receivers, d_out) or None -> the same."""
        from mereo.core.kernels.triton_kernels import forward_kernel

        sums = self.children.new_empty((self.programs, *self.parents), dtype=torch.float32)
        # Without agreement the kernel reads no parents, but every argument must be a tensor.
        given = sums if agreed is None else agreed.contiguous()
        grid = (-(-self.batch // self.options["BLOCK"]), self.programs)
        forward_kernel[grid](
            self.children, self.weight, given, sums, *self.sizes, UNIFORM=agreed is None, **self.options
        )
        return sums.sum(0)

    def start_backward(self) -> None:
        """Make room for the gradients that `backward` adds to."""
        self.d_children = torch.zeros_like(self.children, dtype=torch.float32)
        self.d_weight = torch.zeros_like(self.weight, dtype=torch.float32)

    def backward(self, agreed: Tensor | None, grad: Tensor) -> Tensor | None:
        """Gradient of `forward` at `agreed`: adds to the gradients of children and weight, returns `agreed`'s."""
        from mereo.core.kernels.triton_kernels import backward_kernel

        grad = grad.contiguous()
        sums = grad if agreed is None else grad.new_zeros((self.programs, *self.parents))
        given = grad if agreed is None else agreed.contiguous()
        backward_kernel[(self.programs,)](
            self.children, self.weight, given, grad, self.d_children, self.d_weight, sums, *self.sizes,
            UNIFORM=agreed is None, **self.options,
        )  # fmt: skip
        return None if agreed is None else sums.sum(0)

    def gradients(self) -> tuple[Tensor, Tensor, None]:
        """The gradients of children and weight; the prior has none."""
        return self.d_children, self.d_weight, None
