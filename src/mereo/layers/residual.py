"""Residual branches for deep networks: six forms of x + gain * F(x), compared by Touvron et al.

Source: Touvron et al. 2021, arXiv:2103.17239, figure 2; ReZero arXiv:2003.04887, Fixup arXiv:1901.09321,
T-Fixup (Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization").
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mereo.core.modes import must_be_called
from mereo.errors import UsageError, check_choice
from mereo.layers.layer_scale import LayerScale
from mereo.layers.stochastic_depth import StochasticDepth

FORMS: dict[str, str] = {
    "pre_norm": "x + F(norm(x))",
    "rezero": "x + a F(x), a scalar that starts at 0",
    "fixup": "x + a F(x + b) + c, scalars that start at 1, 0 and 0; F starts at 0, its weights small in deep networks",
    "t_fixup": "x + F(x), the weights of F start small in deep networks",
    "scalar": "x + a F(norm(x)), a scalar that starts close to 0",
    "layer_scale": "x + g * F(norm(x)), a gain for each channel that starts close to 0",
}
"""The forms of a residual branch and their equations; "rezero" is SkipInit as well."""
NORMALISED = ("pre_norm", "scalar", "layer_scale")


class Residual(nn.Module):
    """x + gain * F(norm(x)), in one of `FORMS`.

    Args:
        branch: F, a module (..., dim) -> (..., dim), or one whose output `add` gets.
        dim: size of the tokens.
        last: the name of the branch's last layer, a linear one, into which the gain is folded for inference.
        form: one of `FORMS`.
        start: where the gain of "scalar" and "layer_scale" starts.
        rate: of stochastic depth.
        eps: of the layer normalisation.

    Shapes: (batch, ..., dim) -> the same.

    Deviates: Fixup has a scalar before each layer of a branch; here one stands before the branch and one after it,
        since its linear layers have biases.
    """

    def __init__(
        self,
        branch: nn.Module,
        dim: int,
        last: str,
        *,
        form: str = "layer_scale",
        start: float = 1e-5,
        rate: float = 0.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        check_choice("residual", form, FORMS)
        self.form, self.last = form, last
        self.norm = nn.LayerNorm(dim, eps=eps) if form in NORMALISED else nn.Identity()
        self.branch = branch
        starts = {"rezero": 0.0, "fixup": 1.0, "scalar": start, "layer_scale": start}
        self.scale = LayerScale(dim if form == "layer_scale" else 1, starts[form]) if form in starts else None
        shifts = [nn.Parameter(torch.zeros(1)) if form == "fixup" else None for _ in range(2)]
        self.shift, self.shift_after = shifts
        self.drop = StochasticDepth(rate)

    def prepare(self, x: Tensor) -> Tensor:
        """The input of the branch."""
        prepared: Tensor = self.norm(x)
        return prepared if self.shift is None else prepared + self.shift

    def add(self, x: Tensor, update: Tensor) -> Tensor:
        """The tokens and the output of the branch."""
        update = self.drop(update)
        if self.scale is None:
            return x + update
        # One pass over the tokens in place of two.
        same = update.dtype == x.dtype and not must_be_called(self.scale)
        x = torch.addcmul(x, self.scale.gain, update) if same else x + self.scale(update)
        return x if self.shift_after is None else x + self.shift_after

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, self.branch(self.prepare(x)))

    def for_inference(self) -> nn.Module:
        """Without a gain: it is folded into the branch's last layer."""
        if self.scale is not None:
            linear = self.branch.get_submodule(self.last)
            if not isinstance(linear, nn.Linear):
                raise UsageError(f"last is {self.last!r}, a {type(linear).__name__}; it must be a linear layer.")
            self.scale.fold_into(linear)
            shift, self.scale, self.shift_after = self.shift_after, None, None
            if shift is not None:
                linear.bias.add_(shift)
        return self

    def extra_repr(self) -> str:
        return repr(self.form)


@torch.no_grad()
def start_by_depth(form: str, layers: Sequence[tuple[Tensor, nn.Linear]]) -> None:
    """Start the weights of residual branches without norms as Fixup or T-Fixup do; other forms stay as they are.

    Fixup, L branches of two layers: the first from He's normal distribution times L^(-1/2), the last 0
    T-Fixup, N blocks of two branches: both from Xavier's uniform distribution times 0.67 N^(-1/4)

    Args:
        form: one of `FORMS`.
        layers: of each branch, the weights of its first layer (for attention, of the values) and its last layer.
    """
    check_choice("residual", form, FORMS)
    branches = len(layers)
    for first, last in layers:
        if form == "fixup":
            nn.init.kaiming_normal_(first).mul_(branches**-0.5)
            nn.init.zeros_(last.weight)
        elif form == "t_fixup":
            for weight in (first, last.weight):
                nn.init.xavier_uniform_(weight).mul_(0.67 * (branches / 2) ** -0.25)
