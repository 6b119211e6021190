"""Vision-aware head divergence and reinforcement: heads whose output depends on the image are multiplied.

Source: arXiv:2412.13949.
Cost: for the selection, a pass with and one without the image for each layer that is chosen from; then a product of the
merged heads, or nothing once it is folded into the projection.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_count, check_finite
from mereo.interventions.decoder import Layer, attention_layers, example

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def divergence(seen: Tensor, unseen: Tensor) -> Tensor:
    """VHD = ||A(with image) - A(without)||_2: (..., heads, d) twice -> (..., heads)."""
    return (seen - unseen).norm(dim=-1)


def outlying(vhd: Tensor, text: Tensor) -> Tensor:
    """Heads that react because they fire when the image is gone: both values above mean + deviation of their layer.

    Args:
        text: TA = ||A(without)||^2.

    Shapes: (..., heads) twice -> bool (..., heads). The deviation divides by the number of heads, not by one less.
    """
    limits = (each.mean(-1, keepdim=True) + each.std(-1, correction=0, keepdim=True) for each in (vhd, text))
    first, second = limits
    return (vhd > first) & (text > second)


def reinforced(vhd: Tensor) -> Tensor:
    """Heads above the median of their layer: (..., heads) -> bool (..., heads); of four heads two at most."""
    ordered = vhd.sort(-1).values
    count = vhd.shape[-1]
    median = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return vhd > median.unsqueeze(-1)


def token_divergence(vhd: Tensor, k: int) -> Tensor:
    """Sum over layers of the k largest divergences: (batch, layers, heads) -> (batch,)."""
    check_count(1, k=k)
    if k > vhd.shape[-1]:
        raise UsageError(f"k is {k}; the layers have {vhd.shape[-1]} heads.")
    return vhd.topk(k, -1).values.sum((-2, -1))


class VisionAwareHeads:
    """Gates of the heads of a decoder, chosen for each sample, and the hooks that apply them.

    Args:
        model: a decoder.
        alpha: factor of the chosen heads.
        layers: numbers of the layers with gates.
        without: turns the arguments of a call into the arguments of the same call without the image.
        drop_outliers: whether heads of `outlying` are left out.

    Attributes:
        gates: of each layer with gates, (batch, heads); empty before `prepare`.
        divergences: VHD of the same layers, (batch, heads), outliers set to 0 if they are dropped.
    """

    def __init__(
        self, model: nn.Module, alpha: float, layers: Iterable[int] | None, without: Any, drop_outliers: bool
    ) -> None:
        self.model, self.alpha, self.without, self.drop_outliers = model, alpha, without, drop_outliers
        self.layers = attention_layers(model, layers)
        self.gates: dict[int, Tensor] = {}
        self.divergences: dict[int, Tensor] = {}
        self.prompt, self.busy = 0, False

    def hook(self, number: int, layer: Layer) -> Any:
        def scale(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            gate = self.gates.get(number)
            if gate is None:
                return None
            x = arguments[0]
            if len(gate) not in (1, len(x)):
                raise UsageError(
                    f"the gates are of {len(gate)} samples, and the batch has {len(x)}; prepare them anew."
                )
            wide = gate.to(x).repeat_interleave(x.shape[-1] // gate.shape[1], 1)
            return (x * wide.view(len(gate), *[1] * (x.dim() - 2), -1), *arguments[1:])

        return layer.projection.register_forward_pre_hook(scale)

    def enter(self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Before the model runs: choose the gates if a prompt begins."""
        cache = next((options[name] for name in ("cache", "past_key_values") if options.get(name) is not None), None)
        fresh = cache is None or not cache.get_seq_length()
        if self.busy or not fresh or not options.get("image", True):
            return
        given = next(each for each in (*arguments, *options.values()) if isinstance(each, Tensor))
        if not self.gates or given.shape[1] <= self.prompt:
            self.prompt = given.shape[1]
            self.prepare(*arguments, **dict(options))

    @torch.no_grad()
    def prepare(self, *arguments: Any, **options: Any) -> None:
        """Choose the gates for these inputs, layer by layer, each with the gates of the layers before."""
        options = {name: each for name, each in options.items() if name not in ("cache", "past_key_values")}
        calls: tuple[Arguments, ...] = ((arguments, options), self.without(*arguments, **options))
        self.gates, self.divergences, self.busy = {}, {}, True
        try:
            for number, layer in self.layers:
                seen, unseen = (head_outputs(self.model, layer, *call) for call in calls)
                vhd = divergence(seen, unseen)
                if self.drop_outliers:
                    vhd = vhd.masked_fill(outlying(vhd, unseen.square().sum(-1)), 0)
                self.divergences[number] = vhd
                self.gates[number] = torch.where(reinforced(vhd), self.alpha, 1.0)
        except BaseException:
            self.gates = {}
            raise
        finally:
            self.busy = False


class _ReachedError(Exception):
    """Ends a pass at the layer that is asked for."""


def head_outputs(model: nn.Module, layer: Layer, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor:
    """What the heads of a layer give the last token, before they are projected: (batch, heads, d)."""
    heads = num_heads(model, layer)
    taken: list[Tensor] = []

    def take(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        taken.append(given[0][:, -1])
        raise _ReachedError

    handle = layer.projection.register_forward_pre_hook(take, prepend=True)
    try:
        model(*arguments, **options)
    except _ReachedError:
        pass
    finally:
        handle.remove()
    if not taken:
        raise UsageError(f"without leads to a call that does not reach {layer.name}; give arguments of the same model.")
    last = taken[0].to(accumulation_type(taken[0]))
    return last.unflatten(-1, (heads, -1))


def num_heads(model: nn.Module, layer: Layer) -> int:
    """The number of heads of an attention layer, as it or its configuration states."""
    host = dict(model.named_modules())[layer.name.rpartition(".")[0]]
    config = getattr(host, "config", None)
    found = getattr(host, "num_heads", None) or getattr(config, "num_attention_heads", None)
    if not isinstance(found, int):
        raise UsageError(f"model has the layer {layer.name}, which states no num_heads; give another decoder.")
    return found


def vision_aware_divergence(
    model: nn.Module, *inputs: Any, without: Callable[..., Arguments] | None = None, **options: Any
) -> Tensor:
    """VHD of all heads of a decoder, where the next token is predicted, without any gate: (batch, layers, heads).

    Args:
        inputs, options: of a call that reads image and text, generated tokens included.
        without: from them to the arguments of a call of the same text alone; by default the model's `without_image`.
    """
    calls: tuple[Arguments, ...] = ((inputs, options), _without(model, without)(*inputs, **options))
    with torch.no_grad():
        rows = [
            divergence(*(head_outputs(model, layer, *call) for call in calls)) for _, layer in attention_layers(model)
        ]
    return torch.stack(rows, 1)


def _without(model: nn.Module, given: Callable[..., Arguments] | None) -> Callable[..., Arguments]:
    found = getattr(model, "without_image", None) if given is None else given
    if not callable(found):
        raise UsageError(
            f"without is {given}, and {type(model).__name__} has no without_image; give a function from the arguments"
            " of a call to (arguments, options) of the same text without the image."
        )
    return found


@contextmanager
def folded(heads: VisionAwareHeads) -> Iterator[None]:
    """Gates of one sample as columns of the projections, which then cost nothing; the weights return at the end."""
    if not heads.gates or any(len(gate) != 1 for gate in heads.gates.values()):
        raise UsageError("heads hold no gates of a single sample; prepare one, gates of several are not one weight.")
    kept: list[tuple[Tensor, Tensor]] = []
    for _, layer in heads.layers:
        if not isinstance(layer.projection, nn.Linear):
            raise UsageError(
                f"heads have a {type(layer.projection).__name__} behind {layer.name}; only nn.Linear folds."
            )
        kept.append((layer.projection.weight, layer.projection.weight.detach().clone()))
    gates, heads.gates = heads.gates, {}
    heads.busy = True
    try:
        with torch.no_grad():
            for (number, _), (weight, _) in zip(heads.layers, kept, strict=True):
                weight.mul_(gates[number][0].to(weight).repeat_interleave(weight.shape[1] // gates[number].shape[1]))
        yield
    finally:
        with torch.no_grad():
            for weight, before in kept:
                weight.copy_(before)
        heads.gates, heads.busy = gates, False


@mechanism(
    "vision_aware_heads",
    family="intervention",
    source="arXiv:2412.13949",
    records="nothing",
    example=example,
)
@contextmanager
def vision_aware_heads(
    model: nn.Module,
    *,
    alpha: float = 2.0,
    layers: Iterable[int] | None = None,
    without: Callable[..., Arguments] | None = None,
    drop_outliers: bool = True,
) -> Iterator[VisionAwareHeads]:
    """Multiply the heads that react to the image, chosen for each sample where its prompt is read, inside the block.

    A_li <- alpha A_li for VHD_li > median_i VHD_li,   VHD_li = ||A_li(image, text) - A_li(text)||_2

    Heads that react because they fire without the image are left out, see `outlying`. A layer is chosen from with the
    gates of earlier layers in place, for both inputs; gates then stay for all that is generated, at every token.

    Args:
        model: a decoder.
        alpha: 1 changes nothing.
        layers: numbers of the layers with gates; all but the first by default, none if empty. The paper takes the
            second and the last 14 of 32.
        without: see `vision_aware_divergence`. The image's tokens must be absent, not zeros.
        drop_outliers: whether heads of `outlying` are left out.

    Shapes: as for `model`; the value of the block is a `VisionAwareHeads`, which `folded` takes.

    Deviates: whether the paper's pass without the image runs with the gates is not stated, and the deviation of
    outliers neither; here it does, and it is the population's.

    Reference: arXiv:2412.13949, sections 3 and 4.
    """
    check_finite(alpha=alpha)
    count = len(attention_layers(model))
    heads = VisionAwareHeads(
        model,
        alpha,
        range(min(1, count - 1), count) if layers is None else layers,
        _without(model, without),
        drop_outliers,
    )
    if alpha == 1 or not heads.layers:
        yield heads
        return
    with ExitStack() as stack:
        handles = [heads.hook(number, layer) for number, layer in heads.layers]
        handles.append(model.register_forward_pre_hook(heads.enter, with_kwargs=True))
        for handle in handles:
            stack.callback(handle.remove)
        yield heads
