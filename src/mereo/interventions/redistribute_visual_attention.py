"""Visual attention redistribution: attention that image-centric heads waste on sinks goes to the other image tokens.

Source: arXiv:2503.03321, whose text was not available: two public summaries give its equations. Arguments of the public
code MICV-yonsei/VisAttnSink are mapped below.
Cost: four products and one sum over the rows of the couplings that belong to text behind the image; nothing to learn.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.observe import Call
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_not_negative
from mereo.interventions.decoder import (
    Layer,
    Reading,
    RowEditor,
    attached,
    attention_layers,
    check_share,
    example,
)

SHARE = 0.3125
"""tau as a share of sqrt(D), the largest sink value: 20 at the 4,096 dimensions for which the paper chose it."""
FIRST, NONE = 2, 2**31
"""The layer before which there are no sinks yet; a row behind all others."""
LEAST = 1e-12
"""Attention to image tokens that are no sinks, below which a row stays as it is."""
SPARE = 64
"""Generated tokens for which vectors of senders are extended at once."""


def sink_values(hidden: Tensor, dims: Collection[int]) -> Tensor:
    """phi = max over d in dims of |x_d| / sqrt(mean(x^2) + 1e-6): (..., D) -> (...), at most sqrt(D)."""
    wide = hidden.to(accumulation_type(hidden))
    size = (wide.square().mean(-1) + 1e-6).sqrt()
    return wide[..., list(dims)].abs().amax(-1) / size


def threshold(tau: float | str, width: int) -> float:
    """tau, or SHARE sqrt(D) for "relative"."""
    if isinstance(tau, str):
        check_choice("tau", tau, ("relative",))
        return float(SHARE * width**0.5)
    check_not_negative(tau=tau)
    return tau


def redistribute(
    couplings: Tensor, visual: Tensor, sinks: Tensor, text: Tensor, *, rho: float, take: float = 0.6,
    min_visual: float = 0.2,
) -> Tensor:  # fmt: skip
    """The rule itself. For a query i and a head with m >= min_visual, r >= rho and a visual sink,

    m = sum_(j visual) a_ij,   r = sum_(j visual, no sink) a_ij / m,   Omega = take sum_(j sink) a_ij
    a'_ij = (1 - take) a_ij for sinks,   a_ij (1 + Omega / sum_(k visual, no sink) a_ik) for visual tokens that are none

    Other entries, heads and queries stay bit for bit.

    Args:
        text: the queries that may be changed.

    Shapes: couplings (batch, heads, queries, senders), visual and sinks bool (batch, senders), text bool (batch,
        queries) -> the shape of couplings.
    """
    rule = _Rule.of(visual, sinks, accumulation_type(couplings), rho, take, min_visual)
    return _moved(couplings, rule, text)


class _Rule(NamedTuple):
    """The choice of heads and the change of rows as products of a row with a few vectors.

    Attributes:
        vectors: of the senders: image tokens; image tokens that are no sinks, less rho of all; image tokens that are no
            sinks; and -take for sinks of samples that have one in the image: (batch, 1, 4, senders).
        limits: the least products of a row that is changed, (4,).
    """

    vectors: Tensor
    limits: Tensor

    @classmethod
    def of(
        cls, visual: Tensor, sinks: Tensor, dtype: torch.dtype, rho: float, take: float, min_visual: float
    ) -> "_Rule":  # fmt: skip
        holes = sinks & (visual & sinks).any(1, keepdim=True)
        seen, good = visual.to(dtype), (visual & ~sinks).to(dtype)
        vectors = torch.stack((seen, good - rho * seen, good, -take * holes), 1).unsqueeze(1)
        return cls(vectors, vectors.new_tensor([min_visual, 0, LEAST, -torch.inf]))


def _moved(couplings: Tensor, rule: _Rule, text: Tensor | None) -> Tensor:
    """`redistribute`; with no `text` every query may be changed. Decoding repeats it, so it has few operations."""
    vectors = rule.vectors
    wide = couplings.to(vectors.dtype)
    products = wide @ vectors.mT
    chosen = (products >= rule.limits).all(-1, keepdim=True)
    if text is not None:
        chosen = chosen & text[:, None, :, None]
    # The divisor is never 0, as a gradient through a division by zero is not finite.
    given = products[..., 3:] / products[..., 2:3].clamp(min=LEAST)
    change = torch.addcmul(vectors[:, :, 3:], given, vectors[:, :, 2:3], value=-1)
    return torch.where(chosen, torch.addcmul(wide, wide, change), wide).to(couplings.dtype)


def find_sink_dimensions(
    model: nn.Module, *inputs: Any, tau: float | str = "relative", first_layer: int = FIRST, **options: Any
) -> list[int]:
    """Dimensions in which the first token is huge: mean over inputs and layers of |x_d| / RMS(x) >= tau.

    Args:
        inputs, options: of a call of the model; a few dozen samples are enough.
        first_layer: layers from there on count.
    """
    taken: list[Tensor] = []

    def keep(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        x = arguments[0][:, 0].detach()
        x = x.to(accumulation_type(x))
        taken.append((x.abs() / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()).mean(0))

    norms = [_norm(layer) for number, layer in attention_layers(model) if number >= first_layer]
    handles = [norm.register_forward_pre_hook(keep) for norm in norms]
    try:
        with torch.no_grad():
            model(*inputs, **options)
    finally:
        for handle in handles:
            handle.remove()
    if not taken:
        return []
    mean = torch.stack(taken).mean(0)
    return [int(place) for place in (mean >= threshold(tau, len(mean))).nonzero().flatten()]


def _norm(layer: Layer) -> nn.Module:
    if layer.norm is None:
        raise UsageError(f"layers hold {layer.name}, before which no norm was found; sinks are found in its input.")
    return layer.norm


class _Sinks:
    """The sinks of each layer, found when the prompt is read."""

    def __init__(
        self, model: nn.Module, reading: Reading, dims: Collection[int] | None, tau: float | str, **choice: float
    ) -> None:
        self.model, self.reading, self.dims, self.tau, self.choice = model, reading, dims, tau, choice
        self.entering: dict[str, Tensor] = {}
        self.found: dict[str, _Rule] = {}
        self.busy = False

    def hook(self, layer: Layer) -> Any:
        def keep(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if not self.busy and self.reading.image:
                self.entering[layer.name] = arguments[0]

        return _norm(layer).register_forward_pre_hook(keep)

    def find_dimensions(self, first_layer: int) -> Any:
        """A hook that finds the dimensions on the inputs of the first call."""

        def find(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            if self.dims is not None or self.busy:
                return
            self.busy = True
            try:
                given = {name: each for name, each in options.items() if name not in ("cache", "past_key_values")}
                self.dims = find_sink_dimensions(self.model, *arguments, tau=self.tau, first_layer=first_layer, **given)
            finally:
                self.busy = False
            if not self.dims:
                warnings.warn("no sink dimension was found, so visual attention stays as it is", stacklevel=2)

        return self.model.register_forward_pre_hook(find, with_kwargs=True)

    def rule(self, call: Call) -> _Rule:
        """The rule for the senders of a call. Generated tokens are neither sinks nor of the image."""
        batch, _, _, senders = call.scores.shape
        hidden = self.entering[call.name]
        if hidden.shape[1] == senders:
            part, dims = hidden[:, : self.reading.prompt].detach(), self.dims or ()
            if wrong := [d for d in dims if not -part.shape[-1] <= d < part.shape[-1]]:
                raise UsageError(f"dims hold {wrong[0]}; the hidden states have {part.shape[-1]} dimensions.")
            values = sink_values(part, dims) if dims else part.new_zeros(part.shape[:2])
            sinks = (values >= threshold(self.tau, part.shape[-1])) & bool(dims)
            visual = self.reading.image_tokens(self.reading.prompt, batch)
            self.found[call.name] = _Rule.of(visual, sinks, accumulation_type(call.scores), **self.choice)
        found = self.found[call.name]
        if found.vectors.shape[-1] < senders:
            longer = nn.functional.pad(found.vectors, (0, senders + SPARE - found.vectors.shape[-1]))
            found = self.found[call.name] = _Rule(longer, found.limits)
        return _Rule(found.vectors[..., :senders], found.limits)


@mechanism(
    "redistribute_visual_attention",
    family="intervention",
    source="arXiv:2503.03321",
    records="nothing",
    reconstruction="the text was not available; two public summaries give its equations",
    example=example,
)
@contextmanager
def redistribute_visual_attention(
    model: nn.Module,
    visual: Any = None,
    *,
    rho: float = 0.5,
    take: float = 0.6,
    min_visual: float = 0.2,
    dims: Collection[int] | None = None,
    tau: float | str = "relative",
    layers: Iterable[int] | None = None,
) -> Iterator[None]:
    """Give the attention that image-centric heads waste on sinks to the other image tokens, inside the block.

    a'_ij = (1 - take) a_ij for sinks j;   a_ij (1 + Omega_i / sum_k a_ik) for image tokens that are none

    Omega_i is `take` times the attention of query i to all sinks. See `redistribute` for the choice of heads, and
    `sink_values` for sinks, which are found once, where the prompt enters each layer. Only text behind the image
    attends anew; with a cache every new token does.

    Args:
        model: a decoder: of mereo, or of `transformers` with attention that is called by its interface.
        visual: which tokens of the prompt are of the image: bool (tokens,) or (batch, tokens), or the first and the one
            behind the last; by default what the model states.
        rho: least share of a head's attention to the image that goes to other tokens than sinks: 0.8 for general tasks,
            0.5 against hallucination, 0.9 for vision-centric ones.
        take: share of the attention to sinks that is moved; 0 changes nothing.
        min_visual: least attention of a head to the image.
        dims: in which sinks are huge, such as 1415 and 2533 of LLaMA-2-7B; found on the first call by default.
        tau: least sink value, 20 at 4,096 dimensions; "relative" is 0.3125 sqrt(D).
        layers: numbers of layers; by default all from the third on but the last.

    Shapes: as for `model`.

    Deviates: the public code multiplies sinks by p, which is 1 - take, keeps heads of a sink share up to its rho, which
    is r >= 1 - rho here, changes the last layer, and takes one sample.

    Reference: arXiv:2503.03321; the search for `dims` is ours.
    """
    check_not_negative(rho=rho, min_visual=min_visual)
    check_share(take=take)
    if dims is not None and not len(dims):
        raise UsageError("dims are empty; give dimensions in which sinks are huge, or None to find them.")
    count = len(attention_layers(model))
    chosen = attention_layers(model, range(min(FIRST, count - 1), max(count - 1, 1)) if layers is None else layers)
    reading = Reading(model, visual)
    if take == 0 or rho > 1 or min_visual > 1:
        yield
        return
    sinks = _Sinks(model, reading, dims, tau, rho=rho, take=take, min_visual=min_visual)

    # The first text behind the image of any sample.
    ends = (reading.visual * torch.arange(1, reading.visual.shape[1] + 1, device=reading.visual.device)).amax(1)
    first, last = int(ends.min()), int(ends.max())

    def change(couplings: Tensor, call: Call, begins: bool) -> Tensor:
        if sinks.busy:
            return couplings
        batch, _, queries, senders = couplings.shape
        rule, text = sinks.rule(call), None
        if senders - queries < last:
            text = torch.arange(senders - queries, senders, device=couplings.device) >= ends.unsqueeze(1)
            text = text.expand(batch, -1)
        return _moved(couplings, rule, text)

    def editor(name: str) -> RowEditor:
        return RowEditor(
            name, reading, lambda before: first - before if sinks.dims != [] else NONE, on_couplings=change
        )

    hooks = [sinks.hook(layer) for _, layer in chosen]
    hooks.append(sinks.find_dimensions(min(FIRST, count - 1)))
    with attached(model, reading, [layer for _, layer in chosen], editor, hooks=hooks):
        yield
