"""Coupling: the one place where scores become couplings.

Whether couplings sum to one over the senders (attention: each receiver divides its attention) or over the receivers
(routing: each part divides its vote among wholes) is the argument `over`. Because every mechanism makes its couplings
here and uses them unchanged, `mereo.core.record` sees the couplings in use and `mereo.core.intervene` changes them.

The one exception: the posterior shares of densities in `mereo.generative` (a mixture's responsibilities, Sinkhorn's
assignments) are derived from a joint density together with its bound. Replacing only them would leave a bound that
belongs to other shares, so they are not couplings.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.normalisers import NORMALISERS, top_k_softmax
from mereo.core.observe import Call, Observable
from mereo.core.squash import accumulation_type
from mereo.core.topology import Grid, Topology, Windows
from mereo.errors import UsageError, check_choice, check_positive, check_probability

Over = Literal["senders", "receivers"]
Axis = Literal["senders", "receivers", "both", "none"]
AXIS: dict[str, tuple[int, ...]] = {"senders": (-1,), "receivers": (-2,), "both": (-2, -1), "none": ()}
"""The axes along which couplings are normalised together."""


class Coupling(Observable):
    """Couplings from scores: c = weight * (dropout(normalise(scores / temperature)) + offset).

    Args:
        over: the axis along which scores are normalised: "senders", "receivers", "both" together (all pairs of a head
            share one sum), or "none", for the normalisers "sigmoid" and "none", which treat each score separately.
        normaliser: "softmax", "leaky_softmax", "sparsemax", "entmax15", "top_k", "sigmoid" or "none".
        temperature: divides the scores; above 0.
        top_k: how many entries keep a coupling, only for the normaliser "top_k".
        dropout: probability with which a coupling is dropped in training (the others are scaled up).
        topology: which pairs exist; every pair when None.

    Attributes:
        senders, receivers: their positions on the image, set by the network; None without positions.
        of_places: whether senders and receivers may have positions; channels have none.

    Shapes:
        scores (batch, heads, receivers, senders); mask bool, offset and weight broadcastable to it -> couplings of the
        shape of scores. A mechanism that attends inside tiles gives scores of (batch * tiles, heads, receivers of a
        tile, senders of a tile) and `tiles`, which places them on the image; `tiles` and `context` are passed to
        observers and change nothing. Scores of windows that overlap, (batch * windows, heads, receivers, senders), may
        come with `across`: a sender is then divided among the receivers of all windows that read it, which needs
        over="receivers" and softmax or leaky_softmax.

    Reads as:
        couplings[b, h, r, s]: the share of sender s in what receiver r becomes. A pair that is masked out gets
        exactly 0; if a whole row or column is masked out, it is 0 too, not NaN.
    """

    def __init__(
        self,
        over: Axis,
        normaliser: str = "softmax",
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        dropout: float = 0.0,
        topology: Topology | None = None,
    ) -> None:
        super().__init__()
        check_choice("over", over, AXIS)
        check_choice("normaliser", normaliser, [*NORMALISERS, "top_k"])
        check_positive(temperature=temperature)
        check_probability(dropout=dropout)
        if over == "none" and normaliser not in ("sigmoid", "none"):
            raise UsageError(f"over is 'none' with normaliser {normaliser!r}; give 'sigmoid' or 'none', or an axis.")
        if (normaliser == "top_k") != (top_k is not None):
            raise UsageError(f"top_k is {top_k} with normaliser {normaliser!r}; give both or neither.")
        if top_k is not None:
            check_positive(top_k=top_k)
        self.over, self.normaliser = over, normaliser
        self.temperature, self.top_k, self.dropout = temperature, top_k, dropout
        self.topology = topology
        self.senders: Grid | None = None
        self.receivers: Grid | None = None
        self.of_places = True
        self._normalise = NORMALISERS[normaliser] if top_k is None else partial(top_k_softmax, k=top_k)

    @property
    def is_plain_softmax(self) -> bool:
        """Whether this is the coupling that fused attention computes, apart from the topology."""
        return self.over == "senders" and self.normaliser == "softmax" and self.temperature == 1.0

    def normalise(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores -> normalised scores of the same type, 0 where the mask is False; without dropout."""
        wide, axes = self._widened(scores, mask), AXIS[self.over]
        if len(axes) == 2:
            shares = self._normalise(wide.flatten(-2), -1).unflatten(-1, wide.shape[-2:])
        else:
            shares = self._normalise(wide, axes[0] if axes else -1)
        if mask is not None:
            shares = shares.masked_fill(~mask, 0)
        return shares.to(scores.dtype)

    def _widened(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Scores as they are normalised: divided by the temperature, finite, least where the mask is False."""
        wide = scores.to(accumulation_type(scores))
        if self.temperature != 1:
            wide = wide / self.temperature
        limit = torch.finfo(wide.dtype)
        if wide.dtype != scores.dtype:
            # Large activations overflow half precision to infinite scores, and inf - inf is NaN in every normaliser.
            wide = wide.clamp(limit.min, limit.max)
        return wide if mask is None else wide.masked_fill(~mask, limit.min)

    def normalise_across(self, scores: Tensor, mask: Tensor | None, windows: Windows) -> Tensor:
        """Like `normalise`, over the receivers of all windows that read a sender."""
        if self.over != "receivers" or self.normaliser not in ("softmax", "leaky_softmax"):
            raise UsageError(
                f"over is {self.over!r} with normaliser {self.normaliser!r}; receivers of several windows compete only"
                " over 'receivers' by 'softmax' or 'leaky_softmax'."
            )
        wide, heads = self._widened(scores, mask), scores.shape[1]
        top = wide.detach().amax(-2, keepdim=True)
        grown = (wide - top).exp_()
        sums = (grown.sum(-2, keepdim=True).log() + top).squeeze(-2).transpose(1, 2)
        whole = windows.over_windows(sums.flatten(1))  # (batch * windows, senders * heads)
        if self.normaliser == "leaky_softmax":
            whole = torch.logaddexp(whole, torch.zeros_like(whole))
        shares = grown * (top - whole.unflatten(1, (-1, heads)).transpose(1, 2).unsqueeze(-2)).exp()
        if mask is not None:
            shares = shares.masked_fill(~mask, 0)
        return shares.to(scores.dtype)

    def _couple(
        self,
        scores: Tensor,
        mask: Tensor | None,
        offset: Tensor | None,
        weight: Tensor | None,
        across: Windows | None,
    ) -> Tensor:
        shares = self.normalise(scores, mask) if across is None else self.normalise_across(scores, mask, across)
        couplings = F.dropout(shares, self.dropout, self.training)
        if offset is not None:
            couplings = couplings + offset
        return couplings if weight is None else couplings * weight

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        *,
        offset: Tensor | None = None,
        weight: Tensor | None = None,
        tiles: Topology | None = None,
        across: Windows | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Tensor:
        if self.topology is not None:
            mask = self.topology.restrict(mask, scores.shape[-2], scores.shape[-1], scores.device)
        if not self.observers:
            return self._couple(scores, mask, offset, weight, across)
        placed = None if tiles is None else tiles.tiles()
        counts = scores.shape[-2:] if placed is None else placed.counts
        call = Call(
            scores, self.over, mask=mask, offset=offset, weight=weight, topology=self.topology, tiles=placed,
            senders=_fitting(self.senders, counts[1]), receivers=_fitting(self.receivers, counts[0]),
            context=dict(context or {}),
        )  # fmt: skip
        for observer in self.observers:
            call.scores = observer.scores(call)
        call.couplings = self._couple(call.scores, mask, offset, weight, across)
        for observer in self.observers:
            call.couplings = observer.couplings(call)
        return call.couplings

    def extra_repr(self) -> str:
        parts = [f"over={self.over!r}", f"normaliser={self.normaliser!r}"]
        parts += [f"temperature={self.temperature}"] if self.temperature != 1 else []
        parts += [f"top_k={self.top_k}"] if self.top_k else []
        parts += [f"dropout={self.dropout}"] if self.dropout else []
        parts += [f"topology={self.topology}"] if self.topology is not None else []
        return ", ".join(parts)


def _fitting(grid: Grid | None, count: int) -> Grid | None:
    """The positions, or None if they are of another number, such as the positions for another image size."""
    return grid if grid is not None and grid.size == count else None
