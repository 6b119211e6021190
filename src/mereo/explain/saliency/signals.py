"""Activations of layers and the signals that come back to them, in one forward and one backward pass."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_choice, type_of
from mereo.explain.observation import normalised, ready
from mereo.explain.saliency.excitation import excite, last_scorer
from mereo.explain.saliency.rectified import Rectified
from mereo.explain.target import Target, resolve_target, value_of
from mereo.inference.mode import evaluating
from mereo.models import VisionModel

Layers = Sequence[int | str] | None
"""Layers by number of the stage, from 0 and negative from the end, or by name of a module; None for the last useful."""
Rule = Literal["plain", "deconvnet", "guided", "excitation", "contrast"]
RULES: tuple[Rule, ...] = ("plain", "deconvnet", "guided", "excitation", "contrast")
INPUT = "input"
"""The name of the image itself among layers."""


class LayerSignal(NamedTuple):
    """An activation, and the derivative of the explained value by it: (batch, channels, rows, columns) each."""

    x: Tensor
    g: Tensor


def usable(model: VisionModel, images: Tensor) -> tuple[VisionModel, Tensor]:
    """As `ready`; UsageError for weights of half precision, in which the gradients of single places underflow."""
    model, images = ready(model, images)
    if images.dtype in (torch.float16, torch.bfloat16):
        raise UsageError(f"model is of {images.dtype}, in which gradients underflow; give model.float().")
    return model, images


def layer_names(model: VisionModel, layers: Layers) -> list[str]:
    """The modules of `layers`: numbers count the stages of the network, None takes all stages."""
    stages = [str(info["module"]) for info in model.feature_info]
    if isinstance(layers, str | int) or (layers is not None and not layers):
        raise UsageError(f"layers is {layers!r}; give a list of numbers of stages or of names of modules.")
    if layers is None and not stages:
        lists = [(name, len(each)) for name, each in model.named_modules() if isinstance(each, nn.ModuleList)]
        name, count = max(lists, key=itemgetter(1), default=("", 0))
        such = f", such as {name}.{count - 1}" if count else ""
        raise UsageError(f"layers is None, and {type(model).__name__} has no stages; give names of modules{such}.")
    known, names = dict(model.named_modules()), []
    for layer in range(len(stages)) if layers is None else layers:
        if isinstance(layer, int) or layer.lstrip("-").isdigit():
            if not -len(stages) <= int(layer) < len(stages):
                raise UsageError(f"layers has {layer}; {type(model).__name__} has the stages 0 to {len(stages) - 1}.")
            names.append(stages[int(layer)])
        elif layer == INPUT or (layer and layer in known):
            names.append(layer)
        else:
            some = ", ".join(stages[:4]) or "names from model.named_modules()"
            raise UsageError(
                f"layers has {layer!r}, which is no module of {type(model).__name__}; the stages are {some}."
            )
    return names


def to_map(model: VisionModel, tensor: Tensor, name: str) -> Tensor:
    """What a layer gives as (batch, channels, rows, columns); the tokens before the patches are left out.

    A network that does not state how many these are has none if its tokens make a square, or else a class token.
    """
    if any(name == info["module"] for info in model.feature_info):
        tensor = model.as_map(tensor, False)
    if tensor.dim() == 3:
        stated = getattr(model, "num_prefix_tokens", None)
        for prefix in (0, 1) if stated is None else (stated,):
            count = tensor.shape[1] - prefix
            rows, columns = getattr(model, "grid", (int(count**0.5 + 0.5),) * 2)
            if rows * columns == count:
                return tensor[:, prefix:].transpose(1, 2).unflatten(2, (rows, columns))
    if tensor.dim() != 4:
        raise UsageError(
            f"layers has {name!r}, whose output {tuple(tensor.shape)} is neither a map nor a grid of tokens."
        )
    return tensor


def _install(model: VisionModel, contrast: bool, stack: ExitStack) -> None:
    """Pass the backward signal through modules by excitation while the stack is open."""
    hook = partial(excite, last=last_scorer(model), contrast=contrast)
    for module in model.modules():
        stack.callback(module.register_forward_hook(hook).remove)
        if getattr(module, "inplace", False):  # would change what a hook keeps
            module.inplace = False  # type: ignore[assignment]
            stack.callback(setattr, module, "inplace", True)


def layer_signals(
    model: VisionModel,
    images: Tensor,
    target: Target | None = None,
    layers: Layers = None,
    *,
    rule: Rule = "plain",
    inputs_of_layers: bool = False,
) -> dict[str, LayerSignal]:
    """Activations x of layers and g = d value / d x, by name of the layer, for any number of layers at once.

    Args:
        model: any network of images; it runs in evaluation mode and is left as it was.
        images: in [0, 1], not normalised; the layer "input" is these.
        target: as for `input_gradients`; or a tensor like the outputs, by which they are multiplied and summed.
        layers: the outputs of these; without any, the last stage by which the value has a derivative that is not zero.
        rule: how g passes back. "deconvnet": through a ReLU as max(g, 0). "guided": as max(g, 0) where its input is
            above 0. "excitation" and "contrast": see `excite`.
        inputs_of_layers: x is the input of the layer, and g the derivative by its output.

    Shapes: images (batch, channels, height, width). A module that is called several times counts with its last call.
    """
    check_choice("rule", rule, RULES)
    model, images = usable(model, images)
    names, given, kept = layer_names(model, layers), {}, {}

    def keep(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise UsageError(f"layers has {name!r}, whose output is {type_of(output)}; name one that gives a tensor.")
        kept[name] = output if output.requires_grad else output.detach().requires_grad_()
        given[name] = inputs[0].detach()
        return kept[name].clone()  # what follows may write into it

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.enable_grad())
        if rule in ("excitation", "contrast"):
            _install(model, rule == "contrast", stack)  # before the layers are watched, which then see its outputs
        for name in dict.fromkeys(names):
            if name != INPUT:
                hook = model.get_submodule(name).register_forward_hook(partial(keep, name))
                stack.callback(hook.remove)
        inputs = images.detach().clone()
        if INPUT in names:
            kept[INPUT] = given[INPUT] = inputs.requires_grad_()
        rectified = stack.enter_context(Rectified(rule == "guided")) if rule in ("deconvnet", "guided") else None
        outputs = model(normalised(model, inputs))
        if rectified is not None and not rectified.calls:
            raise UsageError(f"method changes what passes back through ReLU, and {type(model).__name__} has none.")
        if missing := [name for name in names if name not in kept]:
            raise UsageError(f"layers has {missing[0]!r}, which the network does not call as a module.")
        if isinstance(target, Tensor) and target.is_floating_point():
            if target.shape != outputs.shape:
                raise UsageError(f"target is {tuple(target.shape)}; the outputs are {tuple(outputs.shape)}.")
            seed = target.to(outputs)
            target = lambda outputs: (outputs * seed).flatten(1).sum(1)  # noqa: E731
        value = value_of(outputs, resolve_target(model, outputs, target))
        if not value.requires_grad:
            raise UsageError("target gives numbers that do not depend on the layers; compute them from the outputs.")
        found = torch.autograd.grad(value.sum(), [kept[n] for n in names], materialize_grads=True, allow_unused=True)
    signals = {}
    for name, g in zip(names, found, strict=True):
        x = given[name] if inputs_of_layers else kept[name].detach()
        signals[name] = LayerSignal(to_map(model, x, name), to_map(model, g, name))
    if layers is None:
        useful = [name for name, signal in signals.items() if bool(signal.g.any())] or names
        return {useful[-1]: signals[useful[-1]]}
    return signals
