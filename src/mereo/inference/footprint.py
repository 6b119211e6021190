"""The memory that a network needs for large images, from its outline on the meta device, where nothing is computed."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from mereo.core.meta_device import on_meta_device
from mereo.errors import MereoError, UsageError
from mereo.models import VisionModel
from mereo.models.registry import outline
from mereo.runtime.memory import free_memory
from mereo.runtime.text import gibibytes

if TYPE_CHECKING:
    from mereo.data import Batch

LARGE = 256 * 256
"""Pixels of an image up to which memory is not checked before a network runs."""
_SMALLEST = 32
_UNKNOWN = (MereoError, RuntimeError, TypeError, ValueError)
"""Errors of a network whose outline cannot run, because it reads values, or that does not exist at a size."""


class _Streamed(TorchFunctionMode):
    """Attention that stores no scores, as on real devices; on the meta device PyTorch takes the way that does."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            inputs = (*args, *(kwargs or {}).values())[:3]
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*inputs)[0]
        return func(*args, **(kwargs or {}))


def stored_bytes(objective: nn.Module, batch: "Batch") -> int:
    """Bytes that a forward pass stores for the backward pass: each storage counted once, parameters excluded."""
    own = {p.untyped_storage()._cdata for p in objective.parameters()}
    seen: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            seen[storage._cdata] = storage  # kept alive, so that no address is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        objective(batch)
    return sum(storage.nbytes() for storage in seen.values())


def step_bytes(
    model: VisionModel, objective: Callable[[VisionModel], nn.Module], example: "Callable[[VisionModel], Batch]"
) -> int:
    """The least memory of a training step, of a network on the meta device: weights, gradients, stored activations.

    Args:
        model: an outline.
        objective: of the training, from its network.
        example: a batch for the network.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    with on_meta_device(), _Streamed():
        return 2 * weights + stored_bytes(objective(model).train(), example(model))


def map_bytes(model: VisionModel) -> int:
    """The least memory of a prediction, of a network on the meta device: weights and the largest output of a layer."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    sizes = [4 * torch.Size(model.image_shape).numel()]

    def measure(module: nn.Module, inputs: Any, outputs: Any) -> None:
        sizes.extend(x.numel() * x.element_size() for x in tree_leaves(outputs) if isinstance(x, Tensor))

    hooks = [module.register_forward_hook(measure) for module in model.modules()]
    try:
        with on_meta_device(), _Streamed(), torch.no_grad():
            model.eval()(torch.empty(1, *model.image_shape))
    finally:
        for hook in hooks:
            hook.remove()
    return weights + max(sizes)


def check_runs(model: VisionModel, source: Path) -> None:
    """UsageError for a trained network that does not fit in memory with one image of its size.

    Args:
        model: on its device; with small images, or without any, it is not checked.
        source: of its weights.
    """
    if model.input_kind != "images":
        return
    _, height, width = model.image_shape
    if height * width <= LARGE:
        return
    try:
        needed = map_bytes(copy.deepcopy(model).to("meta"))
    except _UNKNOWN:
        return
    free = free_memory(next(model.parameters()).device)
    if needed > free:
        raise UsageError(
            f"{source} takes images of {height}x{width}; one needs at least {gibibytes(needed)}, and"
            f" {gibibytes(free)} of memory are free; give weights that were trained with a smaller --img-size."
        )


def _needed(name: str, arguments: dict[str, Any], measure: Callable[[VisionModel], int]) -> int | None:
    """Bytes that a network with these arguments needs; None if its outline does not determine it."""
    try:
        return measure(outline(name, **arguments))
    except _UNKNOWN:
        return None


def check_fits(
    name: str, arguments: dict[str, Any], size: tuple[int, int], measure: Callable[[VisionModel], int], free: int
) -> None:
    """UsageError for a network that does not fit in memory with one image of its size, with a size that does.

    Args:
        name: of the network.
        arguments: of the network.
        size: height and width of its images; small ones are not checked.
        measure: `map_bytes`, or one that calls `step_bytes`.
        free: bytes of memory.
    """
    if size[0] * size[1] <= LARGE:
        return
    needed = _needed(name, arguments, measure)
    if needed is None or needed <= free:
        return
    side, fitting = max(size) // 2, None
    while side >= _SMALLEST and fitting is None:
        smaller = _needed(name, {**arguments, "img_size": side}, measure)
        fitting = side if smaller is not None and smaller <= free else None
        side //= 2
    what = "give a smaller --img-size" if fitting is None else f"--img-size {fitting} would fit"
    raise UsageError(
        f"img_size is {size[0]}x{size[1]}: {name} takes at least {gibibytes(needed)} for one image of that size, and"
        f" {gibibytes(free)} of memory are free; {what}."
    )
