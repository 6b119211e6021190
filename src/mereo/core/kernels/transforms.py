"""When our own operators must step aside, so that PyTorch sees the plain operations they stand for.

An operator of ours has a gradient in reverse mode and nothing else. Forward-mode derivatives would be dropped without a
word, transforms of `torch.func` raise or lose terms, and an exported program could not be loaded without mereo.

This is the one file that asks PyTorch for its state by private names; for these questions there are no public ones.
"""

import sys

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch


def forward_mode() -> bool:
    """Whether forward-mode derivatives may be attached to tensors now (`torch.autograd.forward_ad.dual_level`)."""
    return int(forward_ad._current_level) >= 0


def transformed() -> bool:
    """Whether the current computation may be differentiated in another than reverse mode."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_mode()


def operations_are_watched() -> bool:
    """Whether a mode counts, traces or replaces the operations that run now, and must see each of them."""
    return _python_dispatch.is_in_torch_dispatch_mode() or torch.jit.is_tracing()  # type: ignore[attr-defined]


def inside_backward() -> bool:
    """Whether a gradient checkpoint computes a forward pass again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def traced_for_onnx() -> bool:
    """Whether torch.onnx traces now; False without an import of it, which this does not cause."""
    traces = not torch.compiler.is_compiling() and "torch.onnx" in sys.modules
    return traces and torch.onnx.is_in_onnx_export()


def fallback_reason() -> str | None:
    """Why an operator of ours cannot stand for its plain operations in this call; None if it can."""
    if torch.compiler.is_exporting() or traced_for_onnx():
        return "the model is being exported"
    if transformed():
        return "a transform of torch.func or a forward-mode derivative is active"
    return None
