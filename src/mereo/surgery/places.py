"""What a network of any library computes, and where: the shapes of its parts, its stages, blocks and attention."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.modes import gradients_kept, modes_kept
from mereo.core.shapes import image_size
from mereo.errors import UsageError, first_line
from mereo.mechanisms.attention.borrowed import borrow
from mereo.mechanisms.attention.called import called_by_others
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import is_host
from mereo.mechanisms.attention.interfaced import is_interfaced
from mereo.surgery.inserted import LAYOUTS, Replaced

_BRANCH_ENDS = ("attn", "self_attention", "mixer", "second", "bn3", "bn2", "conv", "attention", "self_attn", "layer")
"""The last module of the residual branch of known blocks: of transformers, of mereo, and of timm's and torchvision's
residual blocks, whose batch norms are numbered, of torchvision's inverted bottleneck, and of Hugging Face's blocks."""
_BLOCKS = ("Block", "Bottleneck", "InvertedResidual")
_LAYERS = ("BasicLayer", "BottleNeckLayer", "NextLayer", "NextV2Layer")
"""Ends of names of convolutional blocks of Hugging Face; a stage of Swin is a BasicLayer too, and holds blocks."""
_SIDE, _MOST_PREFIX = 224, 6


def _reads_patches(layer: nn.Conv2d) -> bool:
    """Whether a convolution reads patches of three colours as channels, or each channel by itself, and so no images."""
    side = isqrt(layer.in_channels // 3)
    flat = max(layer.kernel_size) == 1 and side > 1 and layer.in_channels == 3 * side**2
    return flat or layer.groups == layer.in_channels > 4


def stated_shape(model: nn.Module) -> tuple[int, tuple[int, int] | None]:
    """Channels of the images of a network, and their height and width if it states them."""
    listed = getattr(model, "image_shape", None) or (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if first is not None and _reads_patches(first):
        first = None
    channels = first.in_channels if first is not None else listed[0] if listed else 3
    # timm's configurations keep the published size even if a network was made for another one.
    own = getattr(getattr(model, "patch_embed", None), "img_size", None) or getattr(model, "image_size", None)
    own = own or getattr(getattr(model, "config", None), "image_size", None)  # of transformers
    size = own or (listed[1:] if listed else None)
    return int(channels), None if size is None else image_size(tuple(size) if isinstance(size, list) else size)


def image_shape_of(model: nn.Module, img_size: int | tuple[int, int] | None) -> tuple[int, int, int]:
    """(channels, height, width) of the images of a network."""
    channels, stated = stated_shape(model)
    height, width = image_size(img_size) if img_size else stated or (_SIDE, _SIDE)
    return channels, height, width


def _layout(module: nn.Module, shape: tuple[int, ...]) -> str:
    """The layout of an output for two images.

    Channels are last where a layer norm or a linear layer inside has as many as the last axis, and nothing inside as
    many as the second. With as many rows as channels, they are last if no convolution inside makes so many.
    """
    if len(shape) == 3:
        return "tokens first" if shape[0] != 2 == shape[1] else "tokens"
    inside = list(module.modules())
    norms = [each for each in inside if isinstance(each, nn.LayerNorm) and not type(each).__name__.endswith("2d")]
    last = {each.normalized_shape[-1] for each in norms}
    last |= {each.out_features for each in inside if isinstance(each, nn.Linear)}
    first = {each.out_channels for each in inside if isinstance(each, nn.Conv2d)}
    others = first if shape[1] == shape[3] else last | first
    return "channels last" if shape[3] in last and shape[1] not in others else "maps"


@torch.no_grad()
def run_once(model: nn.Module, images: Tensor) -> None:
    """Run a network on images, in evaluation mode, for what its hooks see; UsageError if it cannot read them."""
    try:
        with modes_kept(model), gradients_kept(model):
            model.eval()(images)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        side = " x ".join(map(str, images.shape[2:]))
        raise UsageError(
            f"{type(model).__name__} cannot read an image of {side} ({type(error).__name__}: {first_line(error)});"
            " give img_size, and a network of images."
        ) from error


@dataclass
class Outputs:
    """The first output of every module in one pass over two images, by name, in the order in which they were made.

    Attributes:
        shapes: of the outputs, batch first, and channels of maps before their rows.
        layouts: see `Inserted`; of outputs of three and four axes.
    """

    shapes: dict[str, tuple[int, ...]]
    layouts: dict[str, str]

    @classmethod
    def of(cls, model: nn.Module, images: Tensor) -> "Outputs":
        shapes: dict[str, tuple[int, ...]] = {}
        two = images.expand(2, *images.shape[1:])

        def note(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                first = output[0] if isinstance(output, tuple) and output else output
                if isinstance(first, Tensor):
                    shapes[name] = tuple(first.shape)

            return hook

        handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
        try:
            run_once(model, two)
        finally:
            for handle in handles:
                handle.remove()
        layouts = {n: _layout(model.get_submodule(n), shape) for n, shape in shapes.items() if len(shape) in (3, 4)}
        orders = {name: LAYOUTS[layout][0] for name, layout in layouts.items()}
        return cls({n: tuple(s[axis] for axis in orders.get(n, range(len(s)))) for n, s in shapes.items()}, layouts)

    def is_map(self, name: str) -> bool:
        return len(self.shapes.get(name, ())) == 4

    def is_tokens(self, name: str) -> bool:
        return len(self.shapes.get(name, ())) == 3

    def fits(self, name: str) -> bool:
        return self.is_map(name) or self.is_tokens(name)


def _parts(module: nn.Module, prefix: str, seen: Outputs) -> Iterator[tuple[str, nn.Module]]:
    """The children of a module by name; of one that gives no tensor, such as an encoder that lists maps, its own."""
    for name, child in module.named_children():
        if f"{prefix}{name}" in seen.shapes or not any(child.children()):
            yield f"{prefix}{name}", child
        else:
            yield from _parts(child, f"{prefix}{name}.", seen)


def _is_head(name: str) -> bool:
    return any(word in name.rpartition(".")[2] for word in ("head", "classifier"))


def _stages(model: nn.Module, seen: Outputs) -> list[str]:
    """The last module of each stage: as the network states them, or the last part at each resolution but the head."""
    info = getattr(model, "feature_info", None)
    info = getattr(info, "info", info)
    stated = [str(row["module"]) for row in info or () if isinstance(row, Mapping) and row.get("module")]
    if stated := [name for name in stated if name in seen.shapes and any(model.get_submodule(name).children())]:
        return stated
    if blocks := [name for name, module in model.named_modules() if _holds_attention(module) and seen.fits(name)]:
        return blocks
    container, prefix = model, ""
    while True:
        children = [*_parts(container, prefix, seen)]
        parts = [(name, child) for name, child in children if seen.fits(name) and any(child.children())]
        parts = [(name, child) for name, child in parts if not _is_head(name)] or parts
        if len(parts) != 1:
            break
        container, prefix = parts[0][1], f"{parts[0][0]}."
    names = [name for name, _ in parts or children]
    tokens = [name for name in names if seen.is_tokens(name)]
    maps = [name for name in names if seen.is_map(name) and seen.shapes[name][2] > 1]
    if not maps:
        return tokens
    ends: dict[tuple[int, ...], str] = {}
    learned: set[tuple[int, ...]] = set()
    for name in maps:
        size = seen.shapes[name][2:]
        ends[size] = name
        if any(True for _ in model.get_submodule(name).parameters()):
            learned.add(size)
    return [name for size, name in ends.items() if size in learned]


def _blocks(model: nn.Module, seen: Outputs) -> list[str]:
    """The end of the residual branch of each block, before the addition; of a block of unknown kind, its own end.

    Without blocks, as where a module runs attention and MLP of all of them in turn, the layers of attention.
    """
    blocks: list[str] = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        named = any(word in kind for word in _BLOCKS) and "Embed" not in kind
        named |= kind.endswith(_LAYERS) and not hasattr(module, "blocks")
        # A list is none, even if it runs what it lists, as chunks of DINOv2's blocks do.
        is_block = (named or _holds_attention(module)) and not isinstance(module, nn.ModuleList) and seen.fits(name)
        if is_block and not any(name.startswith(f"{outer}.") for outer in blocks):
            blocks.append(name)
    ends = ([f"{name}.{part}" for part in _BRANCH_ENDS if seen.fits(f"{name}.{part}")] for name in blocks)
    return [own[0] if own else name for name, own in zip(blocks, ends, strict=True)] or _attention(model, seen)


def _holds_attention(module: nn.Module) -> bool:
    """Whether a module is a block of transformers or PyTorch around a layer of attention, or what took its place."""
    inner = map(called_by_others, module.children())
    return not called_by_others(module) and any(inner)


def _attention(model: nn.Module, seen: Outputs) -> list[str]:
    """Layers of self-attention of known kinds; without any, those whose source shows that they are attention."""
    kinds = (nn.MultiheadAttention, MultiHeadAttention, Replaced)
    layers = [(name, each) for name, each in model.named_modules() if name]
    known = [name for name, each in layers if is_host(each) or is_interfaced(each) or isinstance(each, kinds)]
    if known:
        return known
    # A part that is given queries, keys and values belongs to the layer around it.
    found = [name for name, each in layers if borrow(each) is not None]
    found = [name if _is_layer(model, name, seen) else name.rpartition(".")[0] for name in found]
    return [name for name in dict.fromkeys(found) if _is_layer(model, name, seen)]


def _is_layer(model: nn.Module, name: str, seen: Outputs) -> bool:
    """Whether a part makes tokens, or a map of the single input that it needs."""
    if not seen.is_map(name):
        return seen.is_tokens(name)
    parameters = inspect.signature(model.get_submodule(name).forward).parameters.values()
    return sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters) <= 1


def places_of(model: nn.Module, where: str | Sequence[str], seen: Outputs) -> list[str]:
    """The names of the parts that `where` of `mereo.insert` names; UsageError if none makes maps or tokens."""
    rules = {"stages": _stages, "blocks": _blocks, "attention": _attention}
    if isinstance(where, str) and where in rules:
        names = rules[where](model, seen)
    else:
        patterns = [where] if isinstance(where, str) else list(where)
        names = [name for name in seen.shapes if any(fnmatchcase(name, pattern) for pattern in patterns)]
        missing = [each for each in patterns if not any(fnmatchcase(name, each) for name in seen.shapes)]
        names = [] if missing else names
    fitting = [name for name in names if seen.fits(name)]
    if not fitting:
        known = [name for name in seen.shapes if name.count(".") < 2][:12]
        raise UsageError(
            f"where is {where!r}, which names no part of {type(model).__name__} that makes maps or tokens; give"
            f" 'stages', 'blocks', 'attention' or names such as {', '.join(known)}."
        )
    return fitting


def positions(shape: tuple[int, ...]) -> int:
    """Tokens of an output (batch, tokens, dim), or places of one (batch, dim, height, width)."""
    return shape[1] if len(shape) == 3 else shape[2] * shape[3]


def patches_of(model: nn.Module, tokens: int) -> tuple[tuple[int, int] | None, int]:
    """Rows and columns of the patches, and the number of tokens before them; (None, 0) if unknown."""
    size = getattr(model, "grid", None) or getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if size is None:
        size = (isqrt(tokens),) * 2
    prefix = tokens - int(size[0]) * int(size[1])
    return ((int(size[0]), int(size[1])), prefix) if 0 <= prefix < _MOST_PREFIX else (None, 0)
