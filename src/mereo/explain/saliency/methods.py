"""Methods of saliency under one interface: model, images, target, layers -> a map for each layer.

Sources: the gradient family as cells of arXiv:2004.02866, table 1; Grad-CAM++ arXiv:1710.11063; rollout and flow
arXiv:2005.00928; integrated gradients arXiv:1703.01365.
Cost: one forward and one backward pass for all layers; integrated gradients 32 of each.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, unknown
from mereo.explain.attention_layers import AttentionLayer, attention_layers
from mereo.explain.gradients import integrated_gradients
from mereo.explain.observation import Observation, observe
from mereo.explain.places import spread
from mereo.explain.rollout import AttentionMap, attention_rollout
from mereo.explain.saliency.flow import attention_flow
from mereo.explain.saliency.signals import INPUT, Layers, Rule, layer_names, layer_signals, usable
from mereo.explain.saliency.two_phase import Phase1, Phase2, aggregate, combine_layers, resized
from mereo.explain.target import Target
from mereo.models import VisionModel

Saliency = Callable[[VisionModel, Tensor, Target | None, Layers], dict[str, Tensor]]
"""(model, images in [0, 1], target, layers) -> maps (batch, 1, rows, columns) by the name of the layer."""


def _mean(x: Tensor, g: Tensor) -> Tensor:
    return g.mean((2, 3), keepdim=True).expand_as(g)


def _plus_plus(x: Tensor, g: Tensor) -> Tensor:
    """sum_u alpha_u max(g_u, 0), alpha = g^2 / (2 g^2 + sum_u x g^3), for an exponential score."""
    below = 2 * g**2 + (x * g**3).sum((2, 3), keepdim=True)
    alpha = torch.where(below != 0, g**2 / torch.where(below != 0, below, 1.0), 0.0)
    return (alpha * g.clamp(min=0)).sum((2, 3), keepdim=True).expand_as(g)


class Preset(NamedTuple):
    """A method as a cell of the two phases.

    Attributes:
        rule: how signals pass back, see `layer_signals`.
        phase1, phase2: see `aggregate`.
        at_input: whether it is of the image by default.
        signal: (x, g) -> the signal in place of g.
        positive: whether numbers below zero become zero.
    """

    rule: Rule
    phase1: Phase1
    phase2: Phase2
    at_input: bool = False
    signal: Callable[[Tensor, Tensor], Tensor] | None = None
    positive: bool = False


PRESETS: dict[str, Preset] = {
    "gradient": Preset("plain", "bias", "abs_max", at_input=True),
    "gradient_sum": Preset("plain", "bias", "sum", at_input=True),
    "deconvnet": Preset("deconvnet", "bias", "abs_max", at_input=True),
    "guided_backprop": Preset("guided", "bias", "abs_max", at_input=True),
    "linear_approximation": Preset("plain", "scaling", "sum"),
    "gradcam": Preset("plain", "scaling", "sum", signal=_mean, positive=True),
    "gradcam_plus_plus": Preset("plain", "scaling", "sum", signal=_plus_plus, positive=True),
    "excitation": Preset("excitation", "scaling", "sum"),
    "contrastive_excitation": Preset("contrast", "scaling", "sum"),
    "normgrad": Preset("plain", "conv1x1", "norm"),
    "selective_normgrad": Preset("plain", "scaling", "positive_norm"),
}


def two_phase(
    preset: Preset, model: VisionModel, images: Tensor, target: Target | None, layers: Layers
) -> dict[str, Tensor]:
    """The maps of a preset, for all layers by one forward and one backward pass."""
    rule, phase1, phase2, at_input, signal, positive = preset
    if layers is None and at_input:
        layers = [INPUT]
    real = phase1 == "real"
    found = layer_signals(model, images, target, layers, rule=rule, inputs_of_layers=real)
    model, maps = getattr(model, "_orig_mod", model), {}
    for name, (x, g) in found.items():
        layer = model.get_submodule(name) if real and name != INPUT else None
        weighted = g if signal is None else signal(x, g)
        made = aggregate(x, weighted, phase1, phase2, layer if isinstance(layer, nn.Conv2d) else None)
        maps[name] = made.clamp(min=0) if positive else made
    return maps


def extract_aggregate(
    model: VisionModel,
    images: Tensor,
    target: Target | None,
    layer: int | str,
    phase1: Phase1,
    phase2: Phase2,
    resize: tuple[int, int] | None = None,
) -> Tensor:
    """One cell of the two phases at one layer, see `aggregate` and `layer_signals`.

    Shapes: images (batch, channels, height, width) -> (batch, 1, rows, columns), or of the size `resize`.
    """
    (made,) = two_phase(Preset("plain", phase1, phase2), model, images, target, [layer]).values()
    return made if resize is None else resized(made, resize)


def _integrated(model: VisionModel, images: Tensor, target: Target | None, layers: Layers) -> dict[str, Tensor]:
    model, images = usable(model, images)
    if layers is not None and list(layers) != [INPUT]:
        raise UsageError(f"layers is {list(layers)}, and integrated_gradients is of the image itself; leave it out.")
    return {INPUT: integrated_gradients(model, images, target).sum(1, keepdim=True)}


def _through_attention(
    follow: Callable[[Observation, list[AttentionLayer]], AttentionMap | None], name: str,
    model: VisionModel, images: Tensor, target: Target | None, layers: Layers,
) -> dict[str, Tensor]:  # fmt: skip
    """A map from all attention up to each layer; it is the same for every target."""
    model, images = usable(model, images)
    observation = observe(model, images, target=target)
    found = attention_layers(observation)
    if not found:
        raise UsageError(f"method is {name!r}, and {type(model).__name__} has no attention between places.")
    ends = {found[-1].name: len(found)}
    if layers is not None:
        ends = {}
        for layer in layer_names(model, layers):
            inside = [n for n, each in enumerate(found) if each.name.startswith(f"{layer}.") or each.name == layer]
            if not inside:
                raise UsageError(
                    f"layers has {layer!r}, in which {type(model).__name__} has no attention between places."
                )
            ends[layer] = inside[-1] + 1
    maps = {}
    for layer, end in ends.items():
        made = follow(observation, found[:end])
        assert made is not None
        maps[layer] = spread(made.cells.to(images), made.grid, *images.shape[2:]).unsqueeze(1)
    return maps


METHODS: dict[str, Saliency] = {
    **{name: partial(two_phase, preset) for name, preset in PRESETS.items()},
    "integrated_gradients": _integrated,
    "rollout": partial(_through_attention, attention_rollout, "rollout"),
    "attention_flow": partial(_through_attention, attention_flow, "attention_flow"),
}
"""The methods by name."""


def method_of(method: str | Saliency) -> Saliency:
    """The method of a name, or the method itself."""
    if isinstance(method, str):
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        return METHODS[method]
    return method


def saliency_map(
    model: VisionModel,
    images: Tensor,
    target: Target | None = None,
    layers: Layers = None,
    *,
    method: str | Saliency = "normgrad",
    weights: Sequence[float] | Literal["uniform", "depth"] = "uniform",
    mode: Literal["product", "sum"] = "product",
) -> Tensor:
    """The map of a method over the image, several layers combined.

    Args:
        model: any network of images; it runs in evaluation mode and is left as it was.
        images: in [0, 1], not normalised.
        target: the class, one for all images or int64 (batch,), the predicted one if None; or a function from the
            outputs to (batch,), for masks and embeddings.
        layers: numbers of stages or names of modules; the method's own if None. For rollout and attention flow, where
            the way back to the image begins.
        method: one of `METHODS`, or a function of that interface.
        weights, mode: of several layers, see `combine_layers`; the map of one layer keeps its sign and scale.

    Shapes: images (batch, channels, height, width) -> (batch, height, width).
    """
    maps = list(method_of(method)(model, images, target, layers).values())
    size = (images.shape[2], images.shape[3])
    made = resized(maps[0], size) if len(maps) == 1 else combine_layers(maps, weights, mode, size)
    return made.squeeze(1)
