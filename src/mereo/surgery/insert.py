"""Mechanisms put into an existing network: after its stages, at the ends of its residual branches, anywhere, or in
place of its attention.

Source: the place at the end of a residual branch is from squeeze and excite, arXiv:1709.01507, figure 3; the gain
that starts at zero is from ReZero, arXiv:2003.04887.
Cost: each mechanism's own, and one pass over what it adds to; `insert` reports parameters and multiply-adds.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mereo.core.catalogue import get_mechanism
from mereo.core.meta_device import on_meta_device
from mereo.core.modes import gradients_kept, modes_kept, source_of
from mereo.core.operations import forward_operations
from mereo.core.shapes import image_size
from mereo.core.surgery import SURGERIES, note_surgery, state_surgery, stated_surgery
from mereo.errors import MereoError, UsageError, check_network, first_line
from mereo.mechanisms.attention.borrowed import borrow
from mereo.mechanisms.attention.called import called_by_others, called_by_pytorch, stand_in
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import is_host
from mereo.mechanisms.attention.interfaced import is_interfaced
from mereo.mechanisms.slots import Place, fill_slot
from mereo.runtime.memory import free_memory
from mereo.runtime.text import gibibytes

_HELD_AS = "inserted"
_BRANCH_ENDS = ("attn", "self_attention", "mixer", "second", "bn3", "bn2", "conv", "attention", "self_attn", "layer")
"""The last module of the residual branch of known blocks: of transformers, of mereo, and of timm's and torchvision's
residual blocks, whose batch norms are numbered, of torchvision's inverted bottleneck, and of Hugging Face's blocks."""
_BLOCKS = ("Block", "Bottleneck", "InvertedResidual")
_LAYERS = ("BasicLayer", "BottleNeckLayer", "NextLayer", "NextV2Layer")
"""Ends of names of convolutional blocks of Hugging Face; a stage of Swin is a BasicLayer too, and holds blocks."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that run or list all of their children."""
_SIDE, _MOST_PREFIX = 224, 6
_MANY = 1024
"""Tokens from which on operations are counted by shapes, since all couplings at once may not fit into memory."""


def _by(mechanism: Callable[[Tensor], Tensor], layout: str, x: Tensor) -> Tensor:
    """What a mechanism makes of an output in one of `_LAYOUTS`, in that layout."""
    there, back = _LAYOUTS[layout]
    return mechanism(x.permute(there)).permute(back)


_LAYOUTS = {
    "tokens": ((0, 1, 2), (0, 1, 2)),
    "tokens first": ((1, 0, 2), (1, 0, 2)),
    "maps": ((0, 1, 2, 3), (0, 1, 2, 3)),
    "channels last": ((0, 3, 1, 2), (0, 2, 3, 1)),
}
"""Orders of axes of an output: to (batch, tokens, dim) or (batch, dim, height, width), and back."""


class Inserted(nn.Module):
    """A mechanism added to what a module of a network returns.

    out = x + gain * mechanism(x);   for a gate, which multiplies x:   out = x + gain * (gate(x) - x)

    Args:
        mechanism: see `mereo.create_mechanism`.
        dim: channels.
        layout: "tokens", "tokens first", with the batch behind them, "maps" or "channels last".
        is_gate: which of the two equations.
        start: of the gain of every channel.

    Shapes: (batch, tokens, dim), (tokens, batch, dim), (batch, dim, height, width) or (batch, height, width, dim) ->
        the same.
    """

    def __init__(self, mechanism: nn.Module, dim: int, layout: str, is_gate: bool, start: float) -> None:
        super().__init__()
        self.mechanism, self.layout, self.is_gate = mechanism, layout, is_gate
        self.gain = nn.Parameter(torch.full((dim, 1, 1) if layout == "maps" else (dim,), float(start)))

    def forward(self, x: Tensor) -> Tensor:
        added = _by(self.mechanism, self.layout, x)
        return x + self.gain * (added - x if self.is_gate else added)


class Replaced(nn.Module):
    """A mechanism in the place of a layer of self-attention, which takes what the layer was given.

    Args:
        mechanism: see `mereo.create_mechanism`.
        layer: whose place it takes; it is called as that one, see `stand_in`.
        layout: see `Inserted`; that of attention of PyTorch is always "tokens", because `stand_in` knows its own.

    Shapes: as for `Inserted`.
    """

    def __init__(self, mechanism: nn.Module, layer: nn.Module, layout: str = "tokens") -> None:
        super().__init__()
        self.mechanism, self.layout = mechanism, layout
        stand_in(self, layer)

    def forward(self, x: Tensor, *others: Any, **switches: Any) -> Any:
        # Masks and the like must be off.
        if given := [each for each in others if each is not None and each is not False]:
            raise UsageError(f"the layer was replaced and is given {type(given[0]).__name__} besides its tokens.")
        if names := [name for name, value in switches.items() if value is not None and value is not False]:
            raise UsageError(f"{names[0]} is given to a layer that was replaced, which takes its tokens only.")
        return _by(self.mechanism, self.layout, x)


class _Run:
    """The forward hook: passes a module's output, or its first part, through the mechanisms behind it.

    An object, so that a copy of the network gets a copy of it, which runs the copied mechanisms.
    """

    def __init__(self, inserted: nn.Module) -> None:
        self.inserted = inserted

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, tuple):
            return self.inserted(output)
        changed = (self.inserted(output[0]), *output[1:])
        return type(output)._make(changed) if hasattr(output, "_make") else changed  # named tuples stay such


@dataclass(frozen=True)
class Insertion:
    """What `insert` did.

    Attributes:
        mechanism: its name.
        places: names of the modules that it was put behind.
        parameters: of the network, before and after.
        multiply_adds: of one image, before and after.
        replaced: whether it is in their place instead.
    """

    mechanism: str
    places: tuple[str, ...]
    parameters: tuple[int, int]
    multiply_adds: tuple[int, int]
    replaced: bool = False

    def __str__(self) -> str:
        rows = [f"{self.mechanism} {'in place of' if self.replaced else 'after'} {', '.join(self.places)}"]
        for what, (before, after) in (("parameters", self.parameters), ("multiply-adds", self.multiply_adds)):
            rows.append(f"{what}: {before:,} -> {after:,} (+{100 * (after - before) / max(before, 1):.2f} %)")
        return "\n".join(rows)


# --- what a network computes, and where -----------------------------------------------------------------------------


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
class _Outputs:
    """The first output of every module in one pass over two images, by name, in the order in which they were made.

    Attributes:
        shapes: of the outputs, batch first, and channels of maps before their rows.
        layouts: see `Inserted`; of outputs of three and four axes.
    """

    shapes: dict[str, tuple[int, ...]]
    layouts: dict[str, str]

    @classmethod
    def of(cls, model: nn.Module, images: Tensor) -> "_Outputs":
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
        orders = {name: _LAYOUTS[layout][0] for name, layout in layouts.items()}
        return cls({n: tuple(s[axis] for axis in orders.get(n, range(len(s)))) for n, s in shapes.items()}, layouts)

    def is_map(self, name: str) -> bool:
        return len(self.shapes.get(name, ())) == 4

    def is_tokens(self, name: str) -> bool:
        return len(self.shapes.get(name, ())) == 3

    def fits(self, name: str) -> bool:
        return self.is_map(name) or self.is_tokens(name)


def _parts(module: nn.Module, prefix: str, seen: _Outputs) -> Iterator[tuple[str, nn.Module]]:
    """The children of a module by name; of one that gives no tensor, such as an encoder that lists maps, its own."""
    for name, child in module.named_children():
        if f"{prefix}{name}" in seen.shapes or not any(child.children()):
            yield f"{prefix}{name}", child
        else:
            yield from _parts(child, f"{prefix}{name}.", seen)


def _is_head(name: str) -> bool:
    return any(word in name.rpartition(".")[2] for word in ("head", "classifier"))


def _stages(model: nn.Module, seen: _Outputs) -> list[str]:
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


def _blocks(model: nn.Module, seen: _Outputs) -> list[str]:
    """The end of the residual branch of each block, before the addition; of a block of unknown kind, its own end.

    Without blocks, as where a module runs attention and MLP of all of them in turn, the layers of attention.
    """
    blocks: list[str] = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        named = any(word in kind for word in _BLOCKS) and "Embed" not in kind
        named |= kind.endswith(_LAYERS) and not hasattr(module, "blocks")
        is_block = (named or _holds_attention(module)) and seen.fits(name)
        if is_block and not any(name.startswith(f"{outer}.") for outer in blocks):
            blocks.append(name)
    ends = ([f"{name}.{part}" for part in _BRANCH_ENDS if seen.fits(f"{name}.{part}")] for name in blocks)
    return [own[0] if own else name for name, own in zip(blocks, ends, strict=True)] or _attention(model, seen)


def _holds_attention(module: nn.Module) -> bool:
    """Whether a module is a block of transformers or PyTorch around a layer of attention, or what took its place."""
    inner = map(called_by_others, module.children())
    return not called_by_others(module) and any(inner)


def _attention(model: nn.Module, seen: _Outputs) -> list[str]:
    """Layers of self-attention of known kinds; without any, those whose source shows that they are attention."""
    kinds = (nn.MultiheadAttention, MultiHeadAttention, Replaced)
    layers = [(name, each) for name, each in model.named_modules() if name]
    known = [name for name, each in layers if is_host(each) or is_interfaced(each) or isinstance(each, kinds)]
    if known:
        return known
    # A part that is given queries, keys and values belongs to the layer around it.
    found = [name for name, each in layers if borrow(each) is not None]
    found = [name if _is_layer(model, name, seen) else name.rpartition(".")[0] for name in found]
    return [name for name in found if _is_layer(model, name, seen)]


def _is_layer(model: nn.Module, name: str, seen: _Outputs) -> bool:
    """Whether a part makes tokens, or a map of the single input that it needs."""
    if seen.is_tokens(name) or not seen.is_map(name):
        return seen.is_tokens(name)
    parameters = inspect.signature(model.get_submodule(name).forward).parameters.values()
    return sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters) <= 1


def _places(model: nn.Module, where: str | Sequence[str], seen: _Outputs) -> list[str]:
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


def _positions(shape: tuple[int, ...]) -> int:
    """Tokens of an output (batch, tokens, dim), or places of one (batch, dim, height, width)."""
    return shape[1] if len(shape) == 3 else shape[2] * shape[3]


def patches_of(model: nn.Module, tokens: int) -> tuple[tuple[int, int] | None, int]:
    """Rows and columns of the patches, and the number of tokens before them; (None, 0) if unknown."""
    size = getattr(model, "grid", None) or getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if size is None:
        size = (isqrt(tokens),) * 2
    prefix = tokens - int(size[0]) * int(size[1])
    return ((int(size[0]), int(size[1])), prefix) if 0 <= prefix < _MOST_PREFIX else (None, 0)


def _made(
    name: str, model: nn.Module, place: str, seen: _Outputs, start: float | None, arguments: Mapping[str, Any]
) -> nn.Module:
    """The mechanism for a place with the output seen: behind it, or in its place if `start` is None."""
    shape, layout = seen.shapes[place], seen.layouts[place]
    heads = arguments.get("heads")
    rest = {key: value for key, value in arguments.items() if key != "heads"}
    is_gate, old = get_mechanism(name).family == "gate", model.get_submodule(place)
    host = old if start is None and is_host(old) else None
    if len(shape) == 3:
        size, prefix = patches_of(model, shape[1])
        made = fill_slot(name, "tokens", Place(shape[2], heads, size, shape[1], prefix, host), rest)
        if start is None:
            return Replaced(made, old, "tokens" if called_by_pytorch(old) else layout)
        return Inserted(made, shape[2], layout, is_gate, start)
    made = fill_slot(name, "maps", Place(shape[1], heads, (shape[2], shape[3]), host=host), rest)
    if start is None:
        return Replaced(made, old, layout)
    return Inserted(made, shape[1], layout, is_gate, start)


def _there(model: nn.Module, places: Sequence[str], replace: bool) -> str:
    return f"{'in place of' if replace else 'after'} {', '.join(places)} of {type(model).__name__}"


def _check_memory(
    name: str,
    model: nn.Module,
    places: Sequence[str],
    seen: _Outputs,
    start: float | None,
    arguments: Mapping[str, Any],
    like: Tensor,
) -> None:
    """UsageError for mechanisms whose weights do not fit in memory, before they are made."""
    with on_meta_device():
        made = [_made(name, model, place, seen, start, arguments) for place in places]
    size = sum(p.numel() * max(p.element_size(), like.element_size()) for module in made for p in module.parameters())
    free = free_memory(like.device)
    if size > free:
        raise UsageError(
            f"{name} {_there(model, places, start is None)} has {gibibytes(size)} of weights, and {gibibytes(free)} of"
            " memory are free; name fewer or later places, or another mechanism."
        )


def insert(
    model: nn.Module,
    name: str,
    where: str | Sequence[str] = "stages",
    *,
    start: float = 0.0,
    replace: bool = False,
    img_size: int | tuple[int, int] | None = None,
    **arguments: Any,
) -> Insertion:
    """Put a mechanism of the catalogue into a network, in place; its weights keep their names and values.

    x + gain * mechanism(x) behind each place, for a gate x + gain * (gate(x) - x), a gain for each channel

    With `start` 0 the network computes exactly what it did, and learns by its gains first.

    Args:
        model: any CNN or vision transformer: of mereo, timm, torchvision, transformers, or your own. One that
            `torch.compile` wrapped is compiled again; `DistributedDataParallel` is put around it afterwards.
        name: of a mechanism with the interface "maps" or "tokens", see `mereo.list_mechanisms(interface=...)`.
        where: "stages" for behind each stage (of a transformer each block), "blocks" for the end of each residual
            branch before the addition (of a transformer the attention; of an unknown block its end), "attention" for
            each layer of self-attention, or names or shell-style patterns of modules.
        start: of the gains; 1 uses a gate as it is.
        replace: put it in place of each of these instead, which must give maps or tokens of the shape that they take.
            The layer that was there is not kept; the mechanism keeps its weights if it is made for that, such as MoH.
        img_size: of the image on which shapes are found out; by default what the network states, or 224.
        arguments: of the mechanism's constructor that the place does not fill in; `heads` sets its heads.

    Returns:
        The places, with parameters and multiply-adds before and after; print it.

    Raises:
        UsageError: for a mechanism that fits no slot, arguments that it does not have, and places that make no maps or
            tokens.

    What is inserted is a child named "inserted" of the module around each place, run by a forward hook. So no other
    parameter changes its name (a wrapping module would rename what it wraps, and published weights would no longer
    load), every module keeps its class and its number among its siblings, and `state_dict`, copies, `torch.compile` and
    `torch.export` include the mechanism. `mereo.remove(model)` undoes it.
    """
    model = _unwrapped(model)
    if replace and start:
        raise UsageError(f"start is {start} with replace; a mechanism in a layer's place has no gain.")
    given = {"name": name, "where": where if isinstance(where, str) else list(where), "start": start, **arguments}
    if replace:
        given["replace"] = True
    channels, height, width = image_shape_of(model, img_size)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    images = torch.zeros(1, channels, height, width, device=like.device, dtype=like.dtype)
    seen = _Outputs.of(model, images)
    places = _places(model, where, seen)
    # Scans form no couplings.
    large = get_mechanism(name).family != "scan" and max(_positions(seen.shapes[place]) for place in places) >= _MANY
    before = _cost(model, images, large)
    begin = None if replace else start
    _check_memory(name, model, places, seen, begin, arguments, like)
    made = {place: _made(name, model, place, seen, begin, arguments) for place in places}
    _forget_compiled()
    layers = {place: model.get_submodule(place) for place in places}
    for place, module in made.items():
        module.to(like.device, like.dtype)
        if replace:
            model.set_submodule(place, module.train(layers[place].training))
        else:
            _attach(model, place, module)
    try:
        after = _cost(model, images, large)
    except (MereoError, RuntimeError, TypeError, ValueError) as error:
        for place, layer in layers.items():
            if replace:
                model.set_submodule(place, layer)
            else:
                _detach(model, place)
        there, why = _there(model, places, replace), first_line(error).rstrip(".")
        raise UsageError(f"{name} does not fit {there}: {why}; name other places, the network is as it was.") from error
    if img_size is not None:
        given["img_size"] = img_size
    note_surgery(model, "insert", given)
    return Insertion(name, tuple(places), (before[0], after[0]), (before[1], after[1]), replace)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of `torch.compile` and `DataParallel`; UsageError inside another one."""
    check_network(model)
    if isinstance(model, DistributedDataParallel):
        raise UsageError(
            "model is a DistributedDataParallel, which exchanges gradients of the parameters it was made with only;"
            " change the network, and wrap it afterwards."
        )
    inside = model._modules.get("module" if isinstance(model, nn.DataParallel) else "_orig_mod")
    return model if inside is None else _unwrapped(inside)


def _forget_compiled() -> None:
    """Compile everything anew when it runs next: compiled code does not look for hooks that were added later."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _cost(model: nn.Module, images: Tensor, large: bool) -> tuple[int, int]:
    operations = forward_operations(model, images, of_shapes=large)
    return sum(parameter.numel() for parameter in model.parameters()), operations // 2


def _runs_children(module: nn.Module) -> bool:
    """Whether a module runs or lists all of its children, and so cannot hold another one."""
    source = source_of(type(module).forward)
    every = ("self.children()", "self.named_children()", "self._modules")
    return isinstance(module, _CONTAINERS) or any(words in source for words in every)


def _holder(model: nn.Module, place: str) -> tuple[nn.Module, str, nn.Module]:
    """The module that holds what is inserted at a place, its name there, and the module whose output is changed."""
    parts = place.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        outer = model.get_submodule(".".join(parts[:depth]))
        if not _runs_children(outer):
            return outer, "_".join(parts[depth:]), model.get_submodule(place)
    host = model.get_submodule(place)
    while isinstance(host, nn.Sequential) and type(host).forward is nn.Sequential.forward and len(host):
        host = host[-1]  # whose output is the output of the sequence
    if isinstance(host, _CONTAINERS):
        raise UsageError(f"where names {place}, a {type(host).__name__} that cannot hold a mechanism; name its parts.")
    return host, "end", host


def _attach(model: nn.Module, place: str, module: nn.Module) -> None:
    holder, key, host = _holder(model, place)
    if not hasattr(holder, _HELD_AS):
        holder.add_module(_HELD_AS, nn.ModuleDict())
    held: nn.ModuleDict = getattr(holder, _HELD_AS)
    if key not in held:
        held[key] = nn.Sequential()
        host.register_forward_hook(_Run(held[key]))
    held[key].append(module.train(host.training))  # type: ignore[operator]


def _detach(model: nn.Module, place: str) -> None:
    """Take out what was attached last at a place."""
    holder, key, host = _holder(model, place)
    held: nn.ModuleDict = getattr(holder, _HELD_AS)
    row: nn.Sequential = held[key]  # type: ignore[assignment]
    del row[-1]
    if len(row) == 0:
        hooks = host._forward_hooks
        for number in [n for n, hook in hooks.items() if isinstance(hook, _Run) and hook.inserted is row]:
            del hooks[number]
        del held[key]
    if len(held) == 0:
        delattr(holder, _HELD_AS)


def remove(model: nn.Module) -> nn.Module:
    """Take everything out of a network that `mereo.insert` put into it, in place; it computes what it did before.

    What `replace` put in place of a layer stays, because the layer is not kept.

    Args:
        model: the network; one without insertions stays as it is.

    Returns:
        The network.
    """
    whole, model = model, _unwrapped(model)
    _forget_compiled()
    for module in list(model.modules()):
        hooks = module._forward_hooks
        for number in [number for number, hook in hooks.items() if isinstance(hook, _Run)]:
            del hooks[number]
        if isinstance(held := getattr(module, _HELD_AS, None), nn.ModuleDict) and _is_ours(held):
            delattr(module, _HELD_AS)
    if stated := stated_surgery(model):
        state_surgery(model, [each for each in stated if each["name"] != "insert" or each["args"].get("replace")])
    return whole


def describe_inserted(model: nn.Module) -> str | None:
    """A line on the mechanisms that a network was given, such as "inserted: ELA, 4 times; 9,600 parameters"."""
    given = [each for each in model.modules() if isinstance(each, Inserted | Replaced)]
    counts = Counter(type(each.mechanism).__name__ for each in given)
    own = sum(parameter.numel() for each in given for parameter in each.parameters())
    names = "; ".join(f"{name}, {count} time{'s' * (count > 1)}" for name, count in counts.items())
    return f"inserted: {names}; {own:,} parameters" if given else None


def _is_ours(held: nn.ModuleDict) -> bool:
    return all(isinstance(each, Inserted) for row in held.values() for each in row.children())


def _insert(model: nn.Module, **arguments: Any) -> nn.Module:
    insert(model, **arguments)
    return model


SURGERIES["insert"] = _insert
