"""Classifiers of frozen features: logistic regression, and a support vector machine with an RBF kernel.

Source: the evaluation of arXiv:1804.06094; the solver is that of LIBSVM, Fan, Chen, Lin 2005 (second-order selection).
Cost: of logistic regression samples * features * classes an evaluation. Of the machine, samples^2 kernels once, and a
row of them a step; all pairs of classes advance together.
"""

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_not_negative, check_positive

MOST_STORED = 8192
"""Samples of which all kernels are computed once; of more, a row whenever it is needed."""
_SMALLEST = 1e-12
"""Least curvature that is divided by; that of two equal samples is 0."""


def _check(features: Tensor, labels: Tensor, classes: int) -> None:
    if features.dim() != 2 or labels.shape != features.shape[:1] or not len(labels):
        raise UsageError(
            f"features are {tuple(features.shape)} and labels {tuple(labels.shape)}; they must be (samples, features)"
            " and (samples,), with at least one sample."
        )
    if labels.is_floating_point() or labels.min() < 0 or labels.max() >= classes:
        raise UsageError(f"labels must be whole numbers from 0 to {classes - 1}.")
    if not features.isfinite().all():
        raise UsageError("features hold values that are not finite.")


def logistic_regression(
    features: Tensor, labels: Tensor, classes: int, *, penalty: float, iterations: int = 100
) -> nn.Linear:
    """A linear classifier by LBFGS from zero.

    min over W, b of mean_n cross-entropy(W x_n + b, y_n) + penalty |W|^2

    A parameter C of other libraries is penalty = 1 / (2 C samples).

    Args:
        classes: how many there are.
        penalty: of the squared weights; at least 0.
        iterations: of LBFGS at most.

    Shapes: features (samples, features), labels int64 (samples,).
    """
    _check(features, labels, classes)
    check_positive(classes=classes, iterations=iterations)
    check_not_negative(penalty=penalty)
    linear = nn.Linear(features.shape[1], classes, device=features.device, dtype=features.dtype)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    optimiser = torch.optim.LBFGS(linear.parameters(), max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(linear(features), labels) + penalty * linear.weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)
    return linear.requires_grad_(False)


def rbf(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """exp(-gamma |a_i - b_j|^2): (..., n, features), (..., m, features) -> (..., n, m)."""
    squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2) - 2 * (a @ b.transpose(-1, -2))
    return torch.exp(-gamma * squares.clamp(min=0))


class SupportVectorMachine(nn.Module):
    """One RBF machine for each pair of classes, and a vote among them.

    min over a of a^T Q a / 2 - sum a,  0 <= a <= C,  y^T a = 0,  Q_ij = y_i y_j exp(-gamma |x_i - x_j|^2)
    f(x) = sum_i a_i y_i k(x_i, x) + b;   the class with the most wins, and of equal ones the first

    Args:
        samples: of all pairs, padded with copies that have no weight.
        weights: a_i y_i.
        offsets: b.
        pairs: the two classes of each machine, the positive one first.
        classes, gamma: as in `support_vector_machine`.

    Shapes: samples (pairs, most, features), weights (pairs, most), offsets (pairs,), pairs (pairs, 2).
    """

    samples: Tensor
    weights: Tensor
    offsets: Tensor
    pairs: Tensor

    def __init__(
        self, samples: Tensor, weights: Tensor, offsets: Tensor, pairs: Tensor, *, classes: int, gamma: float
    ) -> None:
        super().__init__()
        self.classes, self.gamma = classes, gamma
        for name, value in (("samples", samples), ("weights", weights), ("offsets", offsets), ("pairs", pairs)):
            self.register_buffer(name, value)

    def margins(self, features: Tensor) -> Tensor:
        """f(x) of every pair: (samples, features) -> (samples, pairs)."""
        machines = zip(self.samples, self.weights, self.offsets, strict=True)
        return torch.stack([rbf(features, s, self.gamma) @ w + b for s, w, b in machines], -1)

    def forward(self, features: Tensor) -> Tensor:
        """Votes for every class: (samples, features) -> (samples, classes)."""
        first = self.margins(features) > 0
        winners = torch.where(first, self.pairs[:, 0], self.pairs[:, 1])
        return F.one_hot(winners, self.classes).sum(1).to(features.dtype)


def support_vector_machine(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    inverse_penalty: float = 100.0,
    gamma: float = 0.1,
    tolerance: float = 1e-3,
    steps: int = 100_000,
) -> SupportVectorMachine:
    """Fit a support vector machine to features by sequential minimal optimisation, all pairs of classes together.

    A step changes the two weights of a pair that violate optimality the most; a machine is ready when the violation is
    below the tolerance.

    Args:
        classes: how many there are; those without samples never win.
        inverse_penalty: C, the largest weight of a sample.
        gamma: of the kernel.
        tolerance: of the conditions of optimality.
        steps: at most.

    Shapes: features (samples, features), labels int64 (samples,).
    """
    _check(features, labels, classes)
    check_positive(inverse_penalty=inverse_penalty, gamma=gamma, tolerance=tolerance, steps=steps)
    present = labels.unique().tolist()
    if len(present) < 2:
        raise UsageError(f"labels hold {len(present)} class; a machine needs two at least.")
    both = list(combinations(present, 2))
    rows = [torch.cat([(labels == c).nonzero().squeeze(1) for c in pair]) for pair in both]
    index = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    there = nn.utils.rnn.pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
    x = features.double()
    pairs = torch.tensor(both, device=features.device)
    y = torch.where(labels[index] == pairs[:, :1], 1.0, -1.0).to(x)
    weights, offsets = _solve(x, index, y, there, most=inverse_penalty, gamma=gamma, tolerance=tolerance, steps=steps)
    given = (weights * y).to(features.dtype), offsets.to(features.dtype)
    return SupportVectorMachine(features[index], *given, pairs, classes=classes, gamma=gamma)


def _solve(
    x: Tensor, index: Tensor, y: Tensor, there: Tensor, *, most: float, gamma: float, tolerance: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Weights (pairs, most) and offsets (pairs,) of all machines; `index` are the rows of `x` that are `there`."""
    a, gradient = torch.zeros_like(y), -torch.ones_like(y)  # gradient of the objective: Q a - 1
    kernel = rbf(x, x, gamma) if len(x) <= MOST_STORED else None

    def row(machines: Tensor, chosen: Tensor) -> Tensor:
        """Kernels of one sample of each machine with all of its samples."""
        samples, own = index[machines, chosen], index[machines]
        rows = rbf(x[samples], x, gamma) if kernel is None else kernel[samples]
        return rows.gather(1, own)

    def violations(machines: Tensor) -> tuple[Tensor, Tensor]:
        """- y gradient of the samples whose weight times y may grow, and of those whose may fall."""
        y_, a_ = y[machines], a[machines]
        slope = -y_ * gradient[machines]
        grows = there[machines] & torch.where(y_ > 0, a_ < most, a_ > 0)
        falls = there[machines] & torch.where(y_ > 0, a_ > 0, a_ < most)
        return slope.masked_fill(~grows, -torch.inf), slope.masked_fill(~falls, torch.inf)

    machines = torch.arange(len(y), device=y.device)
    for _ in range(steps):
        up, down = violations(machines)
        high, i = up.max(-1)
        running = high - down.amin(-1) >= tolerance
        if not running.any():
            break
        machines, up, down, high, i = machines[running], up[running], down[running], high[running], i[running]
        row_i = row(machines, i)
        gap = (high.unsqueeze(-1) - down).clamp(min=0)
        gain = gap.square() / (2 - 2 * row_i).clamp(min=_SMALLEST)
        j = gain.masked_fill(~down.isfinite(), -1).argmax(-1)
        row_j = row(machines, j)
        n = torch.arange(len(machines), device=y.device)
        y_i, y_j = y[machines, i], y[machines, j]
        step = gap[n, j] / (2 - 2 * row_i[n, j]).clamp(min=_SMALLEST)
        # a_i grows by y_i step and a_j falls by y_j step; both stay in [0, most].
        a_i, a_j = a[machines, i], a[machines, j]
        step = step.minimum(torch.where(y_i > 0, most - a_i, a_i)).minimum(torch.where(y_j > 0, a_j, most - a_j))
        a[machines, i], a[machines, j] = a_i + y_i * step, a_j - y_j * step
        gradient[machines] += y[machines] * step.unsqueeze(-1) * (row_i - row_j)
    up, down = violations(torch.arange(len(y), device=y.device))
    offsets = (up.amax(-1) + down.amin(-1)) / 2
    return a, offsets
