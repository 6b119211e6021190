"""Causal mixers as one linear recurrence with factors that depend on the token, so that they compare term by term.

    h_i = Lambda_i h_(i-1) + B_i u_i,    y_i = C_i h_i + D_i u_i                                  arXiv:2405.15731

Each head has a state of (states, channels): Lambda_i multiplies its rows, B_i and C_i are vectors over the states, and
the channels share them. A mixer with another Lambda in each channel has a head of one channel for each.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.catalogue import MECHANISMS
from mereo.core.kernels.gated_scan import LEAST, GatedScan, gated_scan
from mereo.core.modes import modes_kept
from mereo.errors import UsageError, check_network, check_positive

DEGREE = 8
"""Degree of the Taylor features of softmax attention."""
MOST_FEATURES = 2**14


@dataclass(frozen=True)
class Recurrence:
    """The recurrence of one mixer on given inputs, with h_0 = 0.

    y_i = sum_{j<=i} C_i (prod_{k=j+1..i} Lambda_k) B_j u_j + D u_i,   outputs = finish(y)

    Attributes:
        log_lambda: log of Lambda, (batch, heads or 1, tokens, states), or one state if all decay alike.
        B, C: (batch, heads or 1, tokens, states).
        u: what enters: the values of attention, the convolved input of a quasi-LSTM; (batch, heads, tokens, channels).
        D: what skips the state, (heads, 1, channels); None for 0.
        finish: y (batch, heads, tokens, channels) -> outputs of the mixer (batch, tokens, dim), such as a projection;
            None for y itself.
        error: largest difference between `run` and the mixer; None if they were not compared.
        steps: Delta of a state space, (batch, heads, tokens, 1), by which log_lambda (1, heads, 1, states) and B are
            still to be multiplied; None once they are, see `discretised`.
    """

    log_lambda: Tensor
    B: Tensor
    C: Tensor
    u: Tensor
    D: Tensor | None = None
    finish: Callable[[Tensor], Tensor] | None = None
    error: float | None = None
    steps: Tensor | None = None

    def discretised(self) -> "Recurrence":
        """The same with its steps in Lambda and B, which are then as large as the states of all tokens."""
        if self.steps is None:
            return self
        return replace(self, log_lambda=self.steps * self.log_lambda, B=self.steps * self.B, steps=None)

    @property
    def Lambda(self) -> Tensor:  # noqa: N802
        """(batch, heads or 1, tokens, states or 1)."""
        return self.discretised().log_lambda.exp()

    def scan(self, state: Tensor | None = None, method: str = "auto") -> tuple[Tensor, Tensor]:
        """The outputs before `finish`, and the last state.

        Args:
            state: before the first token, (batch, heads, states, channels); None for 0.
            method: of `mereo.core.kernels.gated_scan`.
        """
        y, last = gated_scan(GatedScan(self.C, self.B, self.u, self.log_lambda, state, self.steps), method)
        return y if self.D is None else y + self.D * self.u, last

    def run(self, method: str = "auto") -> Tensor:
        """The outputs of the mixer: (batch, tokens, dim)."""
        return self.outputs(self.scan(method=method)[0])

    def outputs(self, y: Tensor) -> Tensor:
        """What the mixer makes of y (batch, heads, tokens, channels): (batch, tokens, dim)."""
        return y if self.finish is None else self.finish(y)

    def kernel(self) -> Tensor:
        """The share of u_j in y_i without D, which is added on the diagonal: (batch, heads, tokens, tokens), float64.

        K_ij = sum_n C_i[n] exp(sum_{k=j+1..i} log Lambda_k[n]) B_j[n] for j <= i, else 0
        """
        made = self.discretised()
        B, C, logs = (x.double() for x in (made.B, made.C, made.log_lambda.clamp(min=LEAST)))
        total, tokens = logs.cumsum(2), self.u.shape[2]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=B.device).triu(1)
        kernel = B.new_zeros(*self.u.shape[:2], tokens, tokens)
        parts = [slice(None)] if logs.shape[-1] == 1 else [slice(n, n + 1) for n in range(logs.shape[-1])]
        for part in parts:
            own = total if logs.shape[-1] == 1 else total[..., part]
            between = (own - own.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
            kernel = kernel + (C[..., part] @ B[..., part].transpose(-1, -2)) * between
        return kernel


def log_decays(log_eta: Tensor) -> Tensor:
    """log(eta_(i-1) / eta_i) of the normalisers of all tokens, eta_0 = 1: (batch, heads, tokens, 1) -> the same."""
    return torch.nn.functional.pad(log_eta, (0, 0, 1, 0))[:, :, :-1] - log_eta


def normalised(
    phi: Tensor, psi: Tensor, values: Tensor, log_eta: Tensor, finish: Callable[[Tensor], Tensor] | None = None
) -> Recurrence:
    """The recurrence of attention with separable scores: sum_{j<=i} phi(q_i)^T psi(k_j) v_j / eta_i.

    Lambda_i = eta_(i-1) / eta_i,   B_i = psi(k_i) / eta_i,   C_i = phi(q_i),   eta_0 = 1

    Shapes: phi, psi (batch, heads, tokens, states), values (batch, heads, tokens, channels), log_eta (batch, heads,
        tokens, 1).
    """
    return Recurrence(log_decays(log_eta), psi * (-log_eta).exp(), phi, values, None, finish)


def taylor_features(x: Tensor, degree: int) -> Tensor:
    """Features whose products are the Taylor polynomial of the exponential: phi(x)^T phi(z) = sum_{p<=degree} (x^T z)^p / p!

    Each monomial stands once, prod_c x_c^(a_c) / sqrt(a_c!), in place of the p-fold tensor product.

    Shapes: (..., dim) -> (..., (dim + degree over degree)).
    """  # noqa: E501
    check_positive(degree=degree)
    dim = x.shape[-1]
    if (count := math.comb(dim + degree, degree)) > MOST_FEATURES:
        most = next(lower for lower in range(degree - 1, -1, -1) if math.comb(dim + lower, lower) <= MOST_FEATURES)
        raise UsageError(
            f"degree is {degree}, which makes {count:,} features of {dim} channels; give at most {most}, for at most"
            f" {MOST_FEATURES:,} features."
        )
    powers = torch.stack([x**p / math.factorial(p) ** 0.5 for p in range(degree + 1)], -2)  # (..., degree + 1, dim)
    chosen = [c for p in range(degree + 1) for c in combinations_with_replacement(range(dim), p)]
    exponents = torch.tensor([[c.count(channel) for channel in range(dim)] for c in chosen], device=x.device)
    features = torch.ones_like(x[..., :1])
    for channel in range(dim):
        features = features * powers[..., channel].index_select(-1, exponents[:, channel])
    return features


def softmax_recurrence(
    q: Tensor, k: Tensor, v: Tensor, degree: int = DEGREE, finish: Callable[[Tensor], Tensor] | None = None
) -> Recurrence:
    """Causal softmax attention with exp(q^T k / sqrt(dim)) replaced by its Taylor polynomial.

    Shapes: q, k (batch, heads, tokens, dim), v (batch, heads, tokens, channels).

    Raises:
        UsageError: for too many features, and for an odd degree too low for the scores: its normaliser is negative.
    """
    phi, psi = (taylor_features(x * x.shape[-1] ** -0.25, degree) for x in (q, k))
    eta = (phi * psi.cumsum(2)).sum(-1, keepdim=True)
    if not bool((eta > 0).all()):
        raise UsageError(f"degree is {degree}, too low for these scores: a normaliser is negative; give an even one.")
    return normalised(phi, psi, v, eta.log(), finish)


def recurrence(
    model: nn.Module, inputs: Tensor | tuple[Tensor, ...], *, degree: int = DEGREE
) -> Recurrence | dict[str, Recurrence]:
    """The recurrence of a causal mixer, or of every mixer inside a model by name, as it computes on these inputs.

    h_i = Lambda_i h_(i-1) + B_i u_i,   y_i = C_i h_i + D_i u_i

    Args:
        model: a mechanism that promises "recurrence", causal `MultiHeadAttention`, a block of `causal_transformer` with
            softmax attention and without biases by distance, or a network with some of them.
        inputs: of the model.
        degree: of the Taylor features of softmax attention, whose recurrence is an approximation.

    Raises:
        UsageError: for a model without such a mixer.

    Each result has its `error`, the largest difference between its outputs and the mixer's. Dropout does not take part.

    Reference: arXiv:2405.15731.
    """
    check_network(model)
    seen: dict[str, tuple[nn.Module, tuple[Any, ...], Any]] = {}
    mixers = {name: module for name, module in model.named_modules() if hasattr(module, "recurrence")}
    if not mixers:
        known = ", ".join(sorted(name for name, entry in MECHANISMS.items() if "recurrence" in entry.promises))
        raise UsageError(
            f"model is a {type(model).__name__} without a mixer that has a recurrence; give MultiHeadAttention with"
            f" causal=True, {known}."
        )

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        return lambda module, given, output: seen.__setitem__(name, (module, given, output))

    handles = [module.register_forward_hook(keep(name)) for name, module in mixers.items()]
    with modes_kept(model):
        model.eval()
        try:
            model(*((inputs,) if isinstance(inputs, Tensor) else inputs))
        finally:
            for handle in handles:
                handle.remove()
        found = {name: _compared(*call, degree) for name, call in seen.items()}
    return found[""] if "" in mixers else found


def _compared(mixer: nn.Module, given: tuple[Any, ...], output: Tensor, degree: int) -> Recurrence:
    """The recurrence of one mixer with its error."""
    if any(each is not None for each in given[1:]):
        raise UsageError(f"{type(mixer).__name__} was called with a mask or a context; its recurrence has neither.")
    form: Any = mixer.recurrence
    options = {"degree": degree} if "degree" in inspect.signature(form).parameters else {}
    made: Recurrence = form(given[0], **options)
    difference = (made.run() - output).abs()
    return replace(made, error=difference.max().item() if difference.numel() else 0.0)
