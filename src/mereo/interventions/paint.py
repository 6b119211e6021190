"""PAINT: attention scores of informed image tokens are raised where the next token is predicted.

Source: arXiv:2501.12206, of which only the abstract was available; the method follows the public code hasanar1f/PAINT,
built on arXiv:2407.21771.
Cost: an addition to the rows of scores that predict a token; the selection reads two maps of the vision encoder.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism, record
from mereo.core.observe import Call
from mereo.errors import UsageError, check_finite
from mereo.interventions.decoder import Reading, RowEditor, attached, attention_layers, check_share, example

FIRST = 2
"""The first layer that is changed, of a decoder with more."""


def select_tokens(
    encoder_attn: Sequence[Tensor], n_visual: int, local_ratio: float = 0.25, spatial_ratio: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Local and summary image tokens from the maps of a vision encoder with a class token.

    local: the floor(local_ratio n) patches to which the class token attends most in the first layer, summed over heads,
        and the floor(spatial_ratio n) that receive most attention there, without the summary tokens.
    summary: those whose attention from the class token of the penultimate layer is above Q3 + 1.5 (Q3 - Q1).

    Shapes: maps (batch, heads, 1 + n_visual, 1 + n_visual), of all layers in order -> bool (batch, n_visual) twice.

    Deviates: the public spatial stream sums over keys, which is 1 for every token; here it sums over queries. The
    public code selects for the first image of a batch only.
    """
    check_share(local_ratio=local_ratio, spatial_ratio=spatial_ratio)
    if not encoder_attn or any(each.dim() != 4 or each.shape[-1] != 1 + n_visual for each in encoder_attn):
        shapes = [tuple(each.shape) for each in encoder_attn]
        raise UsageError(f"encoder_attn are {shapes}; they must be (batch, heads, {1 + n_visual}, {1 + n_visual}).")
    first, late = encoder_attn[0].float(), encoder_attn[max(len(encoder_attn) - 2, 0)].float()
    local = _largest(first[:, :, 0, 1:].sum(1), int(local_ratio * n_visual))
    local |= _largest(first.mean(1).sum(1)[:, 1:], int(spatial_ratio * n_visual))
    values = late[:, :, 0, 1:].sum(1)
    summary = outliers(values)
    return local & ~summary, summary


def outliers(values: Tensor) -> Tensor:
    """Values above Q3 + 1.5 (Q3 - Q1), quartiles by linear interpolation: (batch, n) -> bool (batch, n)."""
    low, high = torch.quantile(values, values.new_tensor([0.25, 0.75]), dim=1, keepdim=True)
    return values > high + 1.5 * (high - low)


def _largest(values: Tensor, count: int) -> Tensor:
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, values.topk(count, 1).indices, True)


def boost(scores: Tensor, factors: Tensor) -> Tensor:
    """z + f |z|, where |z| is finite: scores (batch, heads, queries, senders), factors broadcastable to them."""
    size = scores.abs()
    return scores + (factors * size.masked_fill(size == torch.inf, 0)).to(scores.dtype)


def contrast(seen: Tensor, unseen: Tensor, gamma: float) -> Tensor:
    """gamma (log p(image) - log p(no image)) + log p(no image), minus infinity where log p(image) < log 0.1 + its max.

    gamma 1 is log p(image) without the forbidden tokens.

    Shapes: scores (..., vocabulary) with and without the image -> the same.
    """
    check_finite(gamma=gamma)
    seen, unseen = seen.float().log_softmax(-1), unseen.float().log_softmax(-1)
    least = seen.amax(-1, keepdim=True) - torch.tensor(10.0).log()
    return (gamma * (seen - unseen) + unseen).masked_fill(seen < least, -torch.inf)


def head_sensitivity(model: nn.Module, *inputs: Any, visual: Any = None, **options: Any) -> Tensor:
    """Attention to the image of the text behind it, mean over samples and places, as a share of the layer's largest
    head.

    g_lh = s_lh / max_h s_lh,   s_lh = mean sum_(j visual) a_lhij

    Deviates: ours; the paper's abstract has gains for each head, the public code has none.

    Shapes: -> (layers, heads), of all layers of the decoder.
    """
    reading, names = Reading(model, visual), [layer.name for _, layer in attention_layers(model)]
    with record(model, names) as trace, torch.no_grad():
        model(*inputs, **options)
    rows = []
    for name in names:
        couplings = trace[name]
        reading.prompt = couplings.shape[-1]
        seen = reading.image_tokens(couplings.shape[-1], len(couplings))
        text = torch.arange(seen.shape[1], device=seen.device) > int(seen.nonzero()[:, 1].max())
        if not bool(text.any()):
            raise UsageError("inputs end with the image; give a prompt with text behind it.")
        rows.append((couplings * seen[:, None, None]).sum(-1)[:, :, text].mean((0, 2)))
    sensitivity = torch.stack(rows)
    return sensitivity / sensitivity.amax(1, keepdim=True).clamp(min=1e-12)


def _masks(name: str, mask: Tensor | None, count: int) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.dim() not in (1, 2) or mask.shape[-1] != count:
        raise UsageError(f"{name} is {mask.dtype} {tuple(mask.shape)}; it must be bool (batch, {count} image tokens).")
    return mask.reshape(-1, count)


@mechanism(
    "paint",
    family="intervention",
    source="arXiv:2501.12206",
    records="nothing",
    reconstruction="only the abstract was available; the public code is followed, and gains of heads are ours",
    example=example,
)
@contextmanager
def paint(
    model: nn.Module,
    visual: Any = None,
    *,
    local: Tensor | None = None,
    summary: Tensor | None = None,
    alpha: float = 0.7,
    beta: float = 0.3,
    local_ratio: float = 0.25,
    spatial_ratio: float = 0.0,
    head_gain: Tensor | None = None,
    layers: Iterable[int] | None = None,
) -> Iterator[None]:
    """Raise the attention scores of informed image tokens where the next token is predicted, inside the block.

    z_j <- z_j + alpha g_h |z_j| for local j,   z_j + beta g_h |z_j| for summary j

    Changed are the last row of the prompt and the rows of generated tokens, with a cache or without.

    Args:
        model: a decoder; see `redistribute_visual_attention`.
        visual: its image tokens, in the order of the masks; by default what the model states.
        local, summary: sets of image tokens, bool (image tokens,) or (batch, image tokens). By default they are
            selected by the model's own encoder, see `select_tokens`; without an encoder all image tokens are local,
            which is the
            method of arXiv:2407.21771.
        alpha, beta: of the two sets; 0 changes nothing.
        local_ratio, spatial_ratio: of `select_tokens`.
        head_gain: g, (layers of the decoder, heads), such as `head_sensitivity`; 1 by default.
        layers: numbers of layers; by default all from the third on, or the last of a decoder of two.

    Shapes: as for `model`.

    Deviates: batches, where the public code keeps one selection for all; gains of heads are ours.

    Reference: arXiv:2501.12206; z is the masked score q k / sqrt(d).
    """
    check_finite(alpha=alpha, beta=beta)
    every = attention_layers(model)
    chosen = attention_layers(model, range(min(FIRST, len(every) - 1), len(every)) if layers is None else layers)
    reading = Reading(model, visual)
    counts = reading.visual.sum(1)
    if int(counts.min()) != int(counts.max()):
        raise UsageError(f"visual marks {int(counts.min())} to {int(counts.max())} tokens, and must mark equally many.")
    count = int(counts[0])
    given = {name: _masks(name, mask, count) for name, mask in (("local", local), ("summary", summary))}
    if head_gain is not None and (head_gain.dim() != 2 or len(head_gain) != len(every)):
        raise UsageError(f"head_gain is {tuple(head_gain.shape)}; it must be ({len(every)} layers, heads).")
    if alpha == beta == 0 or (head_gain is not None and not bool(head_gain.any())):
        yield
        return
    encoder = {} if any(mask is not None for mask in given.values()) else _encoder(model)
    maps: dict[str, Tensor] = {}
    found: dict[str, Tensor] = {}

    def keep(couplings: Tensor, call: Call) -> Tensor:
        maps[call.name] = couplings.detach()
        return couplings

    def factors(senders: int, batch: int) -> Tensor:
        """alpha, beta or 0 for each sender: (batch, 1, 1, senders)."""
        seen = reading.image_tokens(senders, batch)
        if encoder:
            near, whole = select_tokens([maps[name] for name in encoder], count, local_ratio, spatial_ratio)
        else:
            nothing = torch.zeros(1, count, dtype=torch.bool, device=seen.device)
            whole = nothing if given["summary"] is None else given["summary"].to(seen.device)
            near = given["local"].to(seen.device) if given["local"] is not None else nothing
            near = ~nothing if given["local"] is given["summary"] is None else near & ~whole
        if len(near) not in (1, batch):
            raise UsageError(f"local covers {len(near)} samples, and the batch has {batch}.")
        values = (alpha * near + beta * whole).expand(batch, -1)
        return torch.zeros(batch, senders, device=seen.device).masked_scatter(seen, values)[:, None, None]

    def change(scores: Tensor, call: Call, begins: bool) -> Tensor:
        batch, heads, _, senders = scores.shape
        if (begins and call.name == chosen[0][1].name) or "factors" not in found:
            found["factors"] = factors(reading.prompt, batch)
        value = found["factors"]
        if value.shape[-1] < senders:
            value = found["factors"] = nn.functional.pad(value, (0, senders - value.shape[-1]))
        value = value[..., :senders]
        if head_gain is not None:
            gain = head_gain[numbers[call.name]]
            if len(gain) != heads:
                raise UsageError(f"head_gain is {tuple(head_gain.shape)}, and the layers have {heads} heads.")
            value = value * gain.to(value)[:, None, None]
        return boost(scores, value)

    def editor(name: str) -> RowEditor:
        return RowEditor(name, reading, lambda before: reading.prompt - 1 - before, on_scores=change)

    numbers = {layer.name: number for number, layer in chosen}
    watched = dict.fromkeys(encoder, keep)
    with attached(model, reading, [layer for _, layer in chosen], editor, watched=watched):
        yield


def _encoder(model: nn.Module) -> dict[str, Coupling]:
    """The couplings of the model's vision encoder, in order: of its module `encoder`."""
    modules = model.named_modules()
    return {name: each for name, each in modules if isinstance(each, Coupling) and name.startswith("encoder.")}
