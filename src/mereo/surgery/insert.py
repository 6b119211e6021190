"""Mechanisms put into an existing network: after its stages, at the ends of its residual branches, anywhere, or in
place of its attention.

Source: the place at the end of a residual branch is from squeeze and excite, arXiv:1709.01507, figure 3; the gain
that starts at zero is from ReZero, arXiv:2003.04887.
Cost: each mechanism's own, and one pass over what it adds to; `insert` reports parameters and multiply-adds.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mereo.core.catalogue import get_mechanism
from mereo.core.meta_device import on_meta_device
from mereo.core.modes import source_of
from mereo.core.operations import forward_operations
from mereo.core.surgery import SURGERIES, note_surgery, state_surgery, stated_surgery
from mereo.errors import MereoError, UsageError, check_network, first_line
from mereo.mechanisms.attention.called import called_by_pytorch
from mereo.mechanisms.attention.hosted import is_host
from mereo.mechanisms.slots import Place, fill_slot
from mereo.runtime.memory import free_memory
from mereo.runtime.text import gibibytes
from mereo.surgery.inserted import Inserted, Replaced
from mereo.surgery.places import Outputs, image_shape_of, patches_of, places_of, positions

_HELD_AS = "inserted"
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that run or list all of their children."""
_MANY = 1024
"""Tokens from which on operations are counted by shapes, since all couplings at once may not fit into memory."""


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
        rows = [f"{self.mechanism} {_where(self.places, self.replaced)}"]
        for what, (before, after) in (("parameters", self.parameters), ("multiply-adds", self.multiply_adds)):
            rows.append(f"{what}: {before:,} -> {after:,} (+{100 * (after - before) / max(before, 1):.2f} %)")
        return "\n".join(rows)


def _where(places: Sequence[str], replaced: bool) -> str:
    return f"{'in place of' if replaced else 'after'} {', '.join(places)}"


def _made(
    name: str, model: nn.Module, place: str, seen: Outputs, start: float | None, arguments: Mapping[str, Any]
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


def _check_memory(what: str, make: Callable[[], Mapping[str, nn.Module]], like: Tensor) -> None:
    """UsageError for mechanisms whose weights do not fit in memory, before they are made."""
    with on_meta_device():
        weights = [p for module in make().values() for p in module.parameters()]
    size, free = sum(p.numel() * max(p.element_size(), like.element_size()) for p in weights), free_memory(like.device)
    if size > free:
        raise UsageError(
            f"{what} has {gibibytes(size)} of weights, and {gibibytes(free)} of memory are free; name fewer or later"
            " places, or another mechanism."
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
            In the place of `torch.nn.MultiheadAttention` it returns (tokens, None): see couplings by `mereo.record`.
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
    seen = Outputs.of(model, images)
    places = places_of(model, where, seen)
    # Scans form no couplings.
    large = get_mechanism(name).family != "scan" and max(positions(seen.shapes[place]) for place in places) >= _MANY
    before = _cost(model, images, large)
    begin, there = None if replace else start, f"{_where(places, replace)} of {type(model).__name__}"

    def make() -> dict[str, nn.Module]:
        return {place: _made(name, model, place, seen, begin, arguments) for place in places}

    _check_memory(f"{name} {there}", make, like)
    made = make()
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
        why = first_line(error).rstrip(".")
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
