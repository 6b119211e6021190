"""Attention adversarial training: a second loss of each step, with the scores of attention moved where they hurt most.

Source: Kitada, Iyatomi 2020, arXiv:2009.12064 (AT, iAT) and 2021, arXiv:2104.08763 (VAT, iVAT).
Cost: the part of the network that follows the scores, once more forward for each further pass, and once more backward.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo.mechanisms.attention.borrowed  # noqa: F401  attention of other libraries has couplings too
from mereo.core import Coupling
from mereo.core.added_loss import AddedLoss
from mereo.core.coupling import AXIS
from mereo.core.observe import Call, observables
from mereo.core.record import NONE_THERE
from mereo.core.repeated import RepeatedPass
from mereo.core.squash import accumulation_type
from mereo.data import Batch
from mereo.errors import UsageError, check_choice, check_count, check_finite, check_not_negative, check_positive
from mereo.tasks.base import Objective

KINDS = ("at", "iat", "vat", "ivat")
DIRECTIONS = ("global", "row", "published")
UNLABELLED = -1
_LEAST = 1e-12
_SCALE = 1024.0
"""Factor of losses whose gradients are only directions, so that they do not underflow in half precision."""


def perturbed_couplings(model: nn.Module) -> dict[str, Coupling]:
    """The couplings of a model by name; UsageError for a model without any."""
    found = {name: module for name, module in observables(model).items() if isinstance(module, Coupling)}
    if not found:
        raise UsageError(f"model is {type(model).__name__}; {NONE_THERE}.")
    return found


def difference_weights(scores: Tensor, valid: Tensor, axes: tuple[int, ...], direction: str) -> Tensor:
    """w_t = sum_k d_tk^2, from differences D_tk = s_t - s_k that are normalised by row or all together.

    row:  d_t = D_t / |D_t|;   global:  d = D / |D|_F;   |D_t|^2 = T (s_t - m)^2 + sum_k (s_k - m)^2,  m the mean of s

    Args:
        axes: that count the tokens.
        direction: "row", where w_t is 1 for each token that differs from another, or "global".

    Shapes: scores and valid, bool, (batch, heads, receivers, senders) -> the same; 0 where not valid or all are equal.
    """
    s = scores.masked_fill(~valid, 0)
    count = valid.sum(axes, keepdim=True)
    rest = (s - s.sum(axes, keepdim=True) / count.clamp(min=1)).masked_fill(~valid, 0)
    total = rest.square().sum(axes, keepdim=True)
    rounding = (4 * torch.finfo(s.dtype).eps * s.abs().amax(axes, keepdim=True)).square() * count
    squares = count * rest.square() + total
    shares = torch.ones_like(squares) if direction == "row" else squares / (2 * count * total).clamp(min=_LEAST**2)
    return shares.masked_fill(~valid | (total <= rounding), 0)


class AttentionAdversary(nn.Module):
    """Add the loss of a step under the perturbation of its scores that raises it most.

    AT:   g = dL/ds,  r = eps g / |g|,                              extra = L(s + r)
    iAT:  r_t = sum_k a_tk d_tk,  a = eps dL/da / |dL/da| at a = 0,  extra = L(s + r);  in closed form
          r_t = eps g_t w_t / sqrt(sum_t g_t^2 w_t),  w_t = sum_k d_tk^2, see `difference_weights`
    VAT:  u <- |d KL(p(s) || p(s + xi u)) / du|,  r = eps u,         extra = KL(p(s) || p(s + r)),  |x|: x of length 1
    iVAT: likewise, u made of differences by a as in iAT

    Args:
        kind: "at", "iat", "vat" or "ivat".
        eps: length of the perturbation.
        lam: weight of the extra loss.
        xi: length of the step of VAT and iVAT by which they find a direction.
        power_iterations: of VAT and iVAT, a pass each.
        direction: of the differences of iAT and iVAT, "global" or "row"; of iAT also "published".
        norm: whether one length is for all scores of an "example", or for each "row" that is normalised together.
        layers: "last", "all", or numbers of the couplings in the order of `mereo.record`.
        queries: "all", or "cls" for the first receiver only.

    Shapes: scores (batch, heads, receivers, senders). Tokens are counted along the axis that couplings are normalised
        over, so in routing they are the receivers; all iterations of a routing are perturbed together.

    Deviates: direction "row" is the literal formula, and gives AT: w_t = 1 unless all scores of a row are equal. The
        released code of iAT takes differences between the examples of a batch, which cancel: "published" gives its
        perturbation, -eps g / |g|, which lowers the loss. iVAT draws no T x T numbers: a random a along d has the same
        effect as any other of its length. The losses are means, so that examples weigh the same as in the task.

    Reference: arXiv:2009.12064, section 3; arXiv:2104.08763, section 3.
    """

    def __init__(
        self,
        kind: str = "iat",
        eps: float = 1.0,
        lam: float = 1.0,
        *,
        xi: float = 0.1,
        power_iterations: int = 1,
        direction: str = "global",
        norm: str = "example",
        layers: str | Sequence[int] = "last",
        queries: str = "all",
    ) -> None:
        super().__init__()
        check_choice("kind", kind, KINDS)
        check_choice("direction", direction, DIRECTIONS)
        check_choice("norm", norm, ("example", "row"))
        check_choice("queries", queries, ("all", "cls"))
        check_not_negative(eps=eps, lam=lam)
        check_positive(xi=xi)
        check_finite(eps=eps, lam=lam, xi=xi)
        check_count(1, power_iterations=power_iterations)
        if direction == "published" and kind != "iat":
            raise UsageError(
                f"direction is 'published' with kind {kind!r}; only 'iat' was published, give it or 'global'."
            )
        if isinstance(layers, str):
            check_choice("layers", layers, ("last", "all"))
        elif not layers or not all(isinstance(each, int) and not isinstance(each, bool) for each in layers):
            raise UsageError(f"layers is {layers!r}; it must be 'last', 'all' or a list of numbers.")
        self.kind, self.eps, self.xi, self.power_iterations = kind, float(eps), float(xi), power_iterations
        self.direction, self.norm, self.layers, self.queries = direction, norm, layers, queries
        self.added = AddedLoss("attention_adversary", lam)

    @property
    def is_virtual(self) -> bool:
        """Whether it needs predictions only, and no labels."""
        return self.kind in ("vat", "ivat")

    def chosen(self, model: nn.Module) -> list[Coupling]:
        """The couplings of `layers`; UsageError for a model without them."""
        found = list(perturbed_couplings(model).values())
        if isinstance(self.layers, str):
            return found if self.layers == "all" else found[-1:]
        if not all(-len(found) <= number < len(found) for number in self.layers):
            raise UsageError(
                f"layers is {self.layers!r}, and the model has {len(found)} couplings, 0 to {len(found) - 1}."
            )
        return [found[number] for number in self.layers]

    # --- the passes -------------------------------------------------------------------------------------------------

    def losses(
        self,
        root: nn.Module,
        model: nn.Module,
        run: Callable[[], tuple[Tensor, Any]],
        count: int,
        lengths: bool = False,
    ) -> tuple[Tensor, Tensor, Any]:
        """The clean loss and the extra loss, () each, and the outputs, of a computation that calls the model.

        Args:
            root: holds the model and all else that `run` calls.
            run: gives a loss, (), and outputs.
            count: examples of the batch.
            lengths: whether outputs are lengths of capsules, which are divided by their sum in place of a softmax.
        """
        passes = RepeatedPass(root, self.chosen(model), run)
        clean, outputs = passes.first()
        if not passes.calls:
            raise UsageError(f"layers is {self.layers!r}, and that coupling took no part in the pass; name others.")
        if self.eps == 0 or not root.training:
            return clean, torch.zeros_like(clean) if self.is_virtual else clean, outputs
        valid = [self._valid(call) for call in passes.calls]
        weights = [self._weights(call, each) for call, each in zip(passes.calls, valid, strict=True)]
        unit = partial(self._unit, [AXIS[call.over] or (-1,) for call in passes.calls], weights, count)
        if not self.is_virtual:
            scores = [call.scores for call in passes.calls]
            slopes = torch.autograd.grad(clean * _SCALE, scores, retain_graph=True, allow_unused=True)
            sign = -1 if self.direction == "published" else 1
            extra, _ = passes.again(self._like(scores, unit(slopes), sign * self.eps))
            return clean, extra, outputs
        prediction = _log_shares(outputs, lengths)
        _, moved = passes.again(self._adverse(passes, prediction, unit, weights, lengths))
        return clean, _divergence(prediction.detach(), _log_shares(moved, lengths)).mean(), outputs

    def _adverse(
        self, passes: RepeatedPass[Any], prediction: Tensor, unit: Callable[..., list[Tensor]],
        weights: list[Tensor], lengths: bool,
    ) -> list[Tensor]:  # fmt: skip
        """The perturbation of VAT or iVAT, found by power iteration from a random one."""
        scores = [call.scores for call in passes.calls]
        # Divided by sqrt(w), which `unit` puts back: a of norm 1 along d.
        direction = unit([torch.randn_like(w) / w.sqrt().clamp(min=_LEAST) for w in weights])
        for _ in range(self.power_iterations):
            tried = [each.detach().requires_grad_() for each in self._like(scores, direction, self.xi)]
            _, outputs = passes.again(tried)
            gap = _divergence(prediction.detach(), _log_shares(outputs, lengths)).sum()
            direction = unit(torch.autograd.grad(gap * _SCALE, tried, allow_unused=True))
        return self._like(scores, direction, self.eps)

    def _valid(self, call: Call) -> Tensor:
        """Which scores may be perturbed: bool, of the shape of the scores."""
        scores = call.scores.detach()
        # Masks are also written as minus infinity, or the least number, in the scores.
        valid = scores.isfinite() & (scores > torch.finfo(scores.dtype).min / 2)
        if call.mask is not None:
            valid = valid & call.mask
        if self.queries == "cls":
            valid = valid & (torch.arange(scores.shape[-2], device=scores.device) == 0).unsqueeze(-1)
        return valid

    def _weights(self, call: Call, valid: Tensor) -> Tensor:
        """w of `difference_weights` for the interpretable kinds, else 1 where valid."""
        scores = call.scores.detach()
        scores = scores.to(accumulation_type(scores))
        if self.kind in ("iat", "ivat") and self.direction != "published":
            return difference_weights(scores, valid, AXIS[call.over] or (-1,), self.direction)
        return valid.to(scores.dtype)

    def _unit(
        self, axes: list[tuple[int, ...]], weights: list[Tensor], count: int, slopes: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """g w / sqrt(sum g^2 w), over an example or a row; 0 where there is no slope."""
        wide = [torch.zeros_like(w) if g is None else g.to(w.dtype) for g, w in zip(slopes, weights, strict=True)]
        wide = [g.masked_fill((w == 0) | ~g.isfinite(), 0) for g, w in zip(wide, weights, strict=True)]
        squares = [g.square() * w for g, w in zip(wide, weights, strict=True)]
        if self.norm == "row":
            sums = [each.sum(axis, keepdim=True) for each, axis in zip(squares, axes, strict=True)]
        else:
            sizes = [each.shape[0] for each in squares]
            if any(size % count for size in sizes):
                raise UsageError(
                    f"norm is 'example', and scores are of {sizes} parts for {count} examples; give 'row'."
                )
            whole = sum(each.reshape(count, -1).sum(1) for each in squares)
            assert isinstance(whole, Tensor)
            sums = [whole.repeat_interleave(size // count).view(-1, 1, 1, 1) for size in sizes]
        return [g * w / s.sqrt().clamp(min=_LEAST) for g, w, s in zip(wide, weights, sums, strict=True)]

    def _like(self, scores: Sequence[Tensor], direction: Sequence[Tensor], factor: float) -> list[Tensor]:
        return [(factor * each).to(score.dtype).detach() for each, score in zip(direction, scores, strict=True)]

    # --- used by itself, and in a training ----------------------------------------------------------------------------

    def loss(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The clean and the extra loss of a classifier, () each; the training loss is clean + lam * extra.

        Args:
            model: scores (batch, classes), or one score (batch, 1) for binary labels; called with the mask if given.
            y: classes; -1 for an example without a label, which VAT and iVAT use too. None for no labels at all.

        Shapes: x (batch, ...), y int64 (batch,).
        """
        if y is None and not self.is_virtual:
            raise UsageError(f"y is None with kind {self.kind!r}; give labels, or kind 'vat' or 'ivat'.")

        def run() -> tuple[Tensor, Tensor]:
            outputs = model(x) if mask is None else model(x, mask)
            return _labelled_loss(outputs, y), outputs

        clean, extra, _ = self.losses(model, model, run, len(x))
        return clean, extra

    def forward(
        self, objective: Objective, step: Callable[[Batch], tuple[Tensor, Any]], batch: Batch
    ) -> tuple[Tensor, Any]:
        """A step of a training with the extra loss added: see `Objective.regularisers`."""
        lengths = getattr(objective.model, "score_kind", "logits") != "logits"
        clean, extra, outputs = self.losses(objective, objective.model, lambda: step(batch), batch.length, lengths)
        self.added(extra)
        return clean, outputs

    def extra_repr(self) -> str:
        return f"{self.kind!r}, eps={self.eps:g}, layers={self.layers!r}"


def _labelled_loss(outputs: Tensor, y: Tensor | None) -> Tensor:
    """The mean cross-entropy over the examples with a label: ()."""
    scores = _two_classes(outputs)
    if y is None:
        return scores.sum() * 0
    if y.shape != outputs.shape[:1] or y.is_floating_point():
        raise UsageError(f"y is {y.dtype} of {tuple(y.shape)}; it must be whole numbers of ({len(outputs)},).")
    if not bool(((y >= UNLABELLED) & (y < scores.shape[1])).all()):
        raise UsageError(
            f"y has {int(y.min())} to {int(y.max())}; it must be 0 to {scores.shape[1] - 1}, -1 for no label."
        )
    losses = F.cross_entropy(scores, y.long(), ignore_index=UNLABELLED, reduction="sum")
    return losses / (y != UNLABELLED).sum().clamp(min=1)


def _two_classes(outputs: Tensor) -> Tensor:
    """Scores (batch, classes), at least in float32; the score of one class stands against 0."""
    wide = outputs.to(accumulation_type(outputs))
    return torch.cat((torch.zeros_like(wide), wide), 1) if wide.shape[1] == 1 else wide


def _log_shares(outputs: Tensor, lengths: bool) -> Tensor:
    """log p of each class: (batch, classes)."""
    if lengths:
        positive = outputs.to(accumulation_type(outputs)).clamp(min=math.sqrt(_LEAST))
        return (positive / positive.sum(1, keepdim=True)).log()
    return _two_classes(outputs).log_softmax(1)


def _divergence(prediction: Tensor, other: Tensor) -> Tensor:
    """KL(p0 || p) of each example, from logarithms: (batch,)."""
    return F.kl_div(other, prediction, log_target=True, reduction="none").sum(1)
