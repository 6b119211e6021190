"""How much each head of attention matters: with it pruned, with it alone, and by the gradient.

Source: Li and others 2023, arXiv:2303.13731, of which only the abstract was available; measures are ours.
Cost: only what follows the pruned layer runs again, all its heads in one batch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_choice
from mereo.inference.evaluate import normalise
from mereo.inference.mode import evaluating
from mereo.models import VisionModel

METRICS = ("probability_drop", "divergence", "loss_increase", "flip_rate", "token_shift")
MODES = ("leave_one_out", "keep_one", "gradient")
Labelled = Iterable[tuple[Tensor, Tensor]]
"""Batches of images in [0, 1], (batch, channels, height, width), and classes, int64 (batch,)."""


class HeadLayer(NamedTuple):
    """Attention whose heads stand side by side before a linear layer: name of the module, that layer, heads."""

    name: str
    projection: nn.Linear
    heads: int


def head_layers(model: nn.Module) -> list[HeadLayer]:
    """The layers whose heads can be masked, in the order of the modules; UsageError if there are none."""
    layers = []
    for name, module in model.named_modules():
        heads, projection = getattr(module, "num_heads", None), getattr(module, "proj", None)
        if isinstance(heads, int) and isinstance(projection, nn.Linear) and projection.in_features % heads == 0:
            layers.append(HeadLayer(name, projection, heads))
    if not layers:
        raise UsageError(f"model is {type(model).__name__}, which has no attention with heads before a layer `proj`.")
    return layers


@contextmanager
def masked_heads(model: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the output of each head, before the projection, by a number while the block runs.

    The bias of the values is part of that output and goes with it; the bias of the projection stays.

    Args:
        masks: by the name of the attention, (heads,) or (batch, heads).
    """
    layers = {layer.name: layer for layer in head_layers(model)}

    def scale(layer: HeadLayer, mask: Tensor, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x = inputs[0]
        if mask.dim() == 2:  # windows of an image are samples of their own
            mask = mask.repeat_interleave(x.shape[0] // mask.shape[0], 0)
            mask = mask.view(len(mask), *[1] * (x.dim() - 2), layer.heads)
        return ((x.unflatten(-1, (layer.heads, -1)) * mask.unsqueeze(-1)).flatten(-2), *inputs[1:])

    with ExitStack() as stack:
        for name, mask in masks.items():
            if name not in layers:
                raise UsageError(f"masks has {name!r}; the layers of attention are {', '.join(layers)}.")
            layer = layers[name]
            if mask.dim() not in (1, 2) or mask.shape[-1] != layer.heads:
                raise UsageError(f"masks has {tuple(mask.shape)} for {name}; give ({layer.heads},), a number a head.")
            stack.callback(layer.projection.register_forward_pre_hook(partial(scale, layer, mask)).remove)
        yield


class Outputs(NamedTuple):
    """Scores (batch, classes), and the pooled features after the last norm (batch, features)."""

    scores: Tensor
    token: Tensor


def _head(model: VisionModel, features: Any) -> Outputs:
    return Outputs(model.forward_head(features), model.forward_head(features, pre_logits=True))


def _whole(model: VisionModel, images: Tensor) -> Outputs:
    return _head(model, model.forward_features(images))


def _ready(model: VisionModel, images: Tensor) -> Tensor:
    """Images as the model takes them; UsageError for models and weights that the measures are not for."""
    if getattr(model, "input_kind", None) != "images" or model.headless or model.output_kind != "scores":
        raise UsageError(f"model is {type(model).__name__}; give a VisionModel that scores classes.")
    parameter = next(model.parameters())
    if parameter.dtype in (torch.float16, torch.bfloat16):
        raise UsageError(f"model is of {parameter.dtype}, too coarse for the effect of one head; give model.float().")
    model.check_images(images := images.to(parameter.device, parameter.dtype))
    cfg = getattr(model, "pretrained_cfg", None)
    return images if cfg is None else normalise(images, cfg["mean"], cfg["std"])


def suffix_outputs(model: VisionModel, images: Tensor, layer: HeadLayer, masks: Tensor) -> list[Outputs]:
    """The outputs for each of several masks of the heads of one layer; what comes before its stage runs once.

    Args:
        images: as the model takes them.
        masks: (variants, heads).
    """
    by_stage = type(model).stage is not VisionModel.stage or hasattr(model, "stages")
    stages = [str(info["module"]) for info in model.feature_info] if by_stage else []
    first = next((n for n, name in enumerate(stages) if f"{layer.name}.".startswith(f"{name}.")), None)
    count, batch = len(masks), len(images)
    rows = masks.repeat_interleave(batch, 0)

    def repeated(x: Tensor) -> Tensor:
        return x.repeat(count, *[1] * (x.dim() - 1))

    if first is None:
        with masked_heads(model, {layer.name: rows}):
            scores, token = _whole(model, repeated(images))
    else:
        needed = model.neck_inputs or (len(stages) - 1,)
        maps, current = dict[int, Tensor](), images
        for n in range(first):
            maps[n] = current = model.stage(n, current)
        maps = {n: repeated(each) for n, each in maps.items() if n in needed}
        current = repeated(current)
        with masked_heads(model, {layer.name: rows}):
            for n in range(first, len(stages)):
                maps[n] = current = model.stage(n, current)
        scores, token = _head(model, model.neck([maps[n] for n in needed]))
    return [Outputs(*each) for each in zip(scores.split(batch), token.split(batch), strict=True)]


def effects(own: Outputs, pruned: Outputs, labels: Tensor) -> dict[str, Tensor]:
    """What pruning changes, for each image, (batch,) by metric.

    probability_drop: p_y - p'_y     divergence: KL(p|m)/2 + KL(p'|m)/2, m = (p + p')/2, in nats, at most log 2
    loss_increase: log p_y - log p'_y     flip_rate: argmax p' != argmax p     token_shift: 1 - cos(z, z')
    """
    before, after = own.scores.log_softmax(1), pruned.scores.log_softmax(1)
    middle = torch.logaddexp(before, after) - math.log(2)
    divergence = sum(((each.exp() * (each - middle)).sum(1) for each in (before, after)), torch.zeros(()))
    of_label = [each.gather(1, labels[:, None])[:, 0] for each in (before, after)]
    return {
        "probability_drop": of_label[0].exp() - of_label[1].exp(),
        "divergence": divergence.clamp(min=0) / 2,
        "loss_increase": of_label[0] - of_label[1],
        "flip_rate": (before.argmax(1) != after.argmax(1)).to(before.dtype),
        "token_shift": 1 - F.cosine_similarity(own.token, pruned.token, dim=1),
    }


def _gradients(model: VisionModel, images: Tensor, labels: Tensor, layers: Sequence[HeadLayer]) -> list[Tensor]:
    """|d CE / d mask_h| at 1, summed over the images, for each layer (heads,): one backward pass for all heads."""
    masks = [torch.ones(len(images), each.heads, dtype=images.dtype, device=images.device) for each in layers]
    with torch.enable_grad():
        for mask in masks:
            mask.requires_grad_()
        with masked_heads(model, {each.name: mask for each, mask in zip(layers, masks, strict=True)}):
            loss = F.cross_entropy(model(images), labels, reduction="sum")
        return [g.abs().sum(0) for g in torch.autograd.grad(loss, masks)]


@torch.no_grad()
def head_importance(
    model: VisionModel, batches: Labelled, metrics: Sequence[str] = METRICS, mode: str = "leave_one_out",
    *, predicted: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The importance of each head, averaged over images, by metric: (layers, heads), NaN where a layer has fewer.

    leave_one_out: what changes, see `effects`, when the head's output is multiplied by 0
    keep_one: minus what changes when all other heads of its layer are
    gradient: |d loss / d mask| at mask 1 of each image, under the name "gradient"

    Probability drop and loss increase may be negative: the network is better without the head.

    Args:
        model: a classifier of images; it runs in evaluation mode and is left as it was.
        batches: images and their true classes.
        metrics: some of `METRICS`; without effect for the gradient.
        mode: one of `MODES`.
        predicted: whether the class of the highest score takes the place of the true one.

    Reference: arXiv:2303.13731, whose abstract names pruning; measures, keep-one and the gradient are ours.
    """
    check_choice("mode", mode, MODES)
    for metric in metrics:
        check_choice("metrics", metric, METRICS)
    model = getattr(model, "_orig_mod", model)
    layers, total = head_layers(model), 0
    names = ("gradient",) if mode == "gradient" else tuple(metrics)
    sums = {name: [torch.zeros(layer.heads, dtype=torch.float64) for layer in layers] for name in names}
    with evaluating(model):
        for images, given in batches:
            inputs = _ready(model, images)
            own = _whole(model, inputs)
            labels = own.scores.argmax(1) if predicted else given.to(inputs.device)
            if len(labels) != len(inputs) or not 0 <= int(labels.min()) <= int(labels.max()) < own.scores.shape[1]:
                raise UsageError(f"batches has labels {labels.tolist()[:8]}; give 0 to {own.scores.shape[1] - 1}.")
            total += len(inputs)
            if mode == "gradient":
                for number, found in enumerate(_gradients(model, inputs, labels, layers)):
                    sums["gradient"][number] += found.double().cpu()
                continue
            for number, layer in enumerate(layers):
                alone = torch.eye(layer.heads, dtype=inputs.dtype, device=inputs.device)
                masks, sign = (1 - alone, 1) if mode == "leave_one_out" else (alone, -1)
                for head, pruned in enumerate(suffix_outputs(model, inputs, layer, masks)):
                    for name, value in effects(own, pruned, labels).items():
                        if name in sums:
                            sums[name][number][head] += sign * float(value.double().sum())
    if not total:
        raise UsageError("batches is empty; give at least one batch of images and labels.")
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_value=float("nan"))
    return {name: pad([row / total for row in rows]) for name, rows in sums.items()}


@torch.no_grad()
def pruning_curve(model: VisionModel, batches: Labelled, order: Sequence[tuple[int, int]]) -> list[float]:
    """Accuracy with none, the first, the first two ... of these heads pruned together.

    Args:
        order: (layer, head), the least important first.
    """
    model, kept = getattr(model, "_orig_mod", model), list(batches)
    layers, right = head_layers(model), [0] * (1 + len(order))
    masks = {layer.name: torch.ones(layer.heads) for layer in layers}
    for step in range(1 + len(order)):
        if step:
            number, head = order[step - 1]
            if not (0 <= number < len(layers) and 0 <= head < layers[number].heads):
                raise UsageError(
                    f"order has {(number, head)}; there are {len(layers)} layers, of {layers[0].heads} heads."
                )
            masks[layers[number].name][head] = 0
        with evaluating(model):
            for images, labels in kept:
                inputs = _ready(model, images)
                with masked_heads(model, {name: mask.to(inputs) for name, mask in masks.items()}):
                    right[step] += int((model(inputs).argmax(1).cpu() == labels.cpu()).sum())
    return [each / sum(len(labels) for _, labels in kept) for each in right]
