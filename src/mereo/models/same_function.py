"""Whether a network of mereo and one of another library compute the same function, beyond holding the same weights."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mereo.errors import UsageError, first_line, type_of
from mereo.escape import cut
from mereo.models.rebuilding import check_dense

LIBRARIES = ("torch.", "timm.", "mereo.")
"""Modules of Python whose layers are known."""
MOST = 3e8
"""Parameters up to which networks are compared in float64."""
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
"""Largest difference of an output, as a share of the largest output."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NO_RATES = ("momentum", "eps", "scale", "temperature")
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of networks that differ from what their library builds."""


def check_modules(source: nn.Module) -> None:
    """UsageError for a network with modules or hooks that its library does not make."""
    for name, module in source.named_modules():
        kind = type(module)
        if any(getattr(module, hooks, None) for hooks in _HOOKS) or "forward" in vars(module):
            fault = "has hooks, which would be lost; remove them (of pruning and norms of weights: make them permanent)"
        elif hasattr(module, "parametrizations"):
            fault = "has parametrisations, which would be lost; remove them, leaving the weights"
        elif ".quantized" in kind.__module__ or "quantizable" in kind.__module__:
            fault = "is quantised; convert the network first, and quantise the copy"
        elif name and not kind.__module__.startswith(LIBRARIES):
            fault = "is of a class of your own or of another library; put back the library's layer, or merge it"
        else:
            continue
        raise UsageError(f"source cannot be converted: {name or 'the network'}, {type_of(module)}, {fault}.")


def check_tensors(source: nn.Module) -> None:
    """UsageError for tensors on the meta device, sparse tensors, and tensors of several types or devices."""
    tensors = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    check_dense(tensors, "source cannot be converted")
    numbers = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    for what, values in (("types", {str(x.dtype) for x in numbers}), ("devices", {str(x.device) for x in numbers})):
        if len(values) > 1:
            raise UsageError(f"source has tensors of the {what} {', '.join(sorted(values))}; convert them to one.")


@torch.no_grad()
def _vary(module: nn.Module) -> None:
    """Change weights, in place, so that every layer has an effect: networks may start with gains of 1e-5."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point():
            continue
        drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        if tensor.dim() > 1:
            tensor.copy_(0.5 * drawn if len(tensor) == 1 else drawn * (len(tensor) / tensor.numel()) ** 0.5)
        elif name.endswith(("bias", "running_mean")):
            tensor.copy_(0.2 * drawn)
        else:
            tensor.copy_(1 + 0.2 * drawn.clamp(-2, 2))


def _run(network: nn.Module, images: Tensor, names: Mapping[str, str]) -> tuple[Tensor, dict[str, tuple[int, float]]]:
    """The output; and for each module in `names`, under its new name, the number of entries and norm of its output."""
    seen: dict[str, tuple[int, float]] = {}
    hooks = []

    def watch(known_as: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen.setdefault(known_as, (output.numel(), float(output.norm())))

        return note

    modules = dict(network.named_modules())
    for name, known_as in names.items():
        if name in modules:
            hooks.append(modules[name].register_forward_hook(watch(known_as)))
    try:
        with torch.no_grad():
            output = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return output[0] if isinstance(output, tuple) else output, seen


def owners(matches: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The modules that hold corresponding tensors: (ours, theirs), each once."""
    pairs = {(a.rpartition(".")[0], b.rpartition(".")[0]): None for a, b in matches.items()}
    yield from pairs


def check_same_function(
    make: Callable[[Mapping[str, Tensor]], nn.Module],
    theirs: nn.Module,
    matches: Mapping[str, str],
    image_shape: tuple[int, int, int],
) -> None:
    """UsageError unless both networks give the same for one random image, in eval mode, with the same random weights.

    They are compared in float64, to 1e-7 of the largest output, so that another epsilon or form of an activation shows;
    networks of more than 3e8 parameters in float32, to 1e-3.

    Args:
        make: makes mereo's network with the weights of their state dict.
        theirs: the other one, which is copied.
        matches: names of our tensors, with theirs.
    """
    large = sum(p.numel() for p in theirs.parameters()) > MOST
    kind = torch.float32 if large else torch.float64
    what, images = type(theirs).__name__, torch.randn(1, *image_shape, generator=torch.Generator().manual_seed(1))
    try:
        twin = deepcopy(theirs).cpu().float().eval()
        _vary(twin)
        state = {name: tensor.clone() for name, tensor in twin.state_dict().items()}
        expected, there = _run(twin.to(kind), images.to(kind), {b: b for _, b in owners(matches) if b})
    except FAILURES as error:
        raise UsageError(
            f"source cannot be converted: this {what} does not run on an image of {tuple(image_shape)}"
            f" ({type(error).__name__}: {cut(first_line(error), 200)})."
        ) from error
    ours = make(state).to(kind).eval()
    output, here = _run(ours, images.to(kind), dict(owners(matches)))
    shapes = tuple(output.shape), tuple(expected.shape)
    apart = float((output - expected).abs().max() / expected.abs().max()) if shapes[0] == shapes[1] else float("inf")
    if apart <= TOLERANCE[kind]:
        return
    modules = dict(theirs.named_modules())
    differing = (
        f" first after {name}, {type_of(modules[name])}"
        for name, (count, norm) in here.items()
        if name
        and name in there
        and there[name][0] == count
        and abs(norm - there[name][1]) > 10 * TOLERANCE[kind] * norm
    )
    how = f"by {apart:.2g} of the largest" if shapes[0] == shapes[1] else f"in shape, {shapes[1]} and {shapes[0]}"
    raise UsageError(
        f"this {what} and mereo's network are no counterparts: with equal weights the outputs for one random image"
        f" differ {how},{next(differing, ' behind the last layer with weights')}. One of them was changed"
        " after it was made, or has arguments that the other does not have."
    )


def _rates(network: nn.Module) -> set[float]:
    """Rates of dropout and stochastic depth above 0 of a network of another library."""
    found = set()
    for module in network.modules():
        if "Drop" in type(module).__name__:
            rate = getattr(module, "p", None) or getattr(module, "drop_prob", None) or getattr(module, "prob", None)
            found |= {round(float(rate), 6)} if rate else set()
    return found


def check_same_training(ours: nn.Module, theirs: nn.Module, matches: Mapping[str, str]) -> None:
    """UsageError for batch norms of another momentum, and rates of dropout that our network does not have."""
    here, there = dict(ours.named_modules()), dict(theirs.named_modules())
    for a, b in owners(matches):
        own, other = here[a], there[b]
        if isinstance(own, _BatchNorm) and isinstance(other, _BatchNorm) and own.momentum != other.momentum:
            raise UsageError(f"momentum of {b} is {other.momentum}, and mereo's network has {own.momentum}.")
    settings = [vars(module).items() for module in ours.modules()]
    known = {round(x, 6) for each in settings for name, x in each if isinstance(x, float) and name not in _NO_RATES}
    if unknown := sorted(_rates(theirs) - known):
        raise UsageError(
            f"source has dropout at the rate {unknown[0]}, which mereo's network does not have; set it to 0."
        )


def take_over(target: nn.Module, source: nn.Module, matches: Mapping[str, str]) -> None:
    """Type, device, mode of each module, and which parameters are trained, in place.

    Args:
        matches: names of tensors of the target, with their names in the source.
    """
    parameters = dict(source.named_parameters())
    if (like := next(source.parameters(), None)) is not None:
        target.to(like.device, like.dtype)
    target.train(source.training)
    modules, others = dict(target.named_modules()), dict(source.named_modules())
    for a, b in owners(matches):
        if not any(modules[a].children()):
            modules[a].training = others[b].training
    for name, parameter in target.named_parameters():
        if matches.get(name) in parameters:
            parameter.requires_grad_(parameters[matches[name]].requires_grad)
