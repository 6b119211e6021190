"""Token-aware average pooling before the attention of a trained or new transformer.

Source: Guo, Stutz, Schiele 2023, arXiv:2303.11126.
Cost: one `TokenAwarePooling` in each block.
"""

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from mereo.core.surgery import surgery
from mereo.errors import UsageError, check_count
from mereo.mechanisms.mixer.token_aware_pooling import TokenAwarePooling
from mereo.surgery.places import image_shape_of, patches_of, run_once

NORM, POOL = "norm1", "token_pool"


class _Pool:
    """The hook that pools the tokens on their way into a norm; an object, so that a copy runs the copied pooling."""

    def __init__(self, pool: nn.Module) -> None:
        self.pool = pool

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.pool(inputs[0]), *inputs[1:])


def _tokens_into(model: nn.Module, blocks: dict[str, nn.Module], images: Tensor) -> dict[str, tuple[int, ...]]:
    """The shapes of what the first norm of each block takes, by the block's name."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str) -> Any:
        return lambda module, inputs: shapes.update({name: tuple(inputs[0].shape)})

    handles = [getattr(block, NORM).register_forward_pre_hook(note(name)) for name, block in blocks.items()]
    try:
        run_once(model, images)
    finally:
        for handle in handles:
            handle.remove()
    return shapes


@surgery
def tap(model: nn.Module, num_scales: int = 4, *, img_size: int | tuple[int, int] | None = None) -> nn.Module:
    """A copy of a transformer whose tokens are pooled before attention: x + attn(norm(tap(x))).

    What is added to stays unpooled. The tokens before the patches, such as a class token, are not pooled.

    Args:
        model: of mereo or timm, with blocks whose first norm, `norm1`, stands before their attention, `attn`. It is
            not changed.
        num_scales: see `TokenAwarePooling`.
        img_size: of the images; by default what the network states, or 224.

    Raises:
        UsageError: for a network without such blocks, or whose tokens are not a map.

    Reference: arXiv:2303.11126, section 4.1.
    """
    check_count(1, num_scales=num_scales)
    copy = deepcopy(model)
    blocks = {
        name: block
        for name, block in copy.named_modules()
        if isinstance(getattr(block, NORM, None), nn.Module) and isinstance(getattr(block, "attn", None), nn.Module)
    }
    kind = type(model).__name__
    if not blocks:
        raise UsageError(f"model is {kind}, which has no blocks of norm1 and attn to pool tokens in.")
    if any(hasattr(block, POOL) for block in blocks.values()):
        raise UsageError(f"model is {kind}, whose blocks pool tokens already; leave tap out.")
    like = next(copy.parameters())
    shapes = _tokens_into(copy, blocks, like.new_zeros(2, *image_shape_of(copy, img_size)))
    for name, block in blocks.items():
        shape = shapes.get(name, ())
        size, prefix = patches_of(copy, shape[1]) if len(shape) == 3 else (None, 0)
        if size is None:
            raise UsageError(f"model is {kind}, and {name} takes {shape}, which is no map of tokens; tap needs one.")
        pool = TokenAwarePooling(shape[2], size, num_scales, prefix).to(like.device, like.dtype)
        block.add_module(POOL, pool)
        getattr(block, NORM).register_forward_pre_hook(_Pool(pool))
    return copy
