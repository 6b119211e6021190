"""The forms of residual branches against their equations, where they start, and folded for inference."""

import copy

import pytest
import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.layers import FeedForward, Residual
from mereo.layers.residual import FORMS, start_by_depth
from mereo.models.folding import folded


def make(form: str, **options: float) -> Residual:
    torch.manual_seed(0)
    residual = Residual(FeedForward(6, 10), 6, "second", form=form, start=0.1, **options).double()
    with torch.no_grad():
        for name, parameter in residual.named_parameters():
            if name.startswith(("scale", "shift", "norm")):
                parameter.add_(torch.randn_like(parameter))
    return residual


def by_equation(residual: Residual, form: str, x: Tensor) -> Tensor:
    branch, norm = residual.branch, residual.norm
    gain = torch.ones(1) if residual.scale is None else residual.scale.gain
    if form in ("pre_norm", "scalar", "layer_scale"):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return x + gain * branch((x - mean) / (variance + 1e-6).sqrt() * norm.weight + norm.bias)
    if form == "fixup":
        assert residual.shift is not None and residual.shift_after is not None
        return x + gain * branch(x + residual.shift) + residual.shift_after
    return x + gain * branch(x)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_its_equation_and_folds(form: str) -> None:
    residual, x = make(form), torch.randn(2, 4, 6, dtype=torch.float64)
    expected = by_equation(residual, form, x)
    torch.testing.assert_close(residual(x), expected)
    ready = folded(residual)
    assert ready.scale is None
    torch.testing.assert_close(ready(x), expected)
    torch.testing.assert_close(residual(x), expected, msg="the residual itself is as it was")


def test_gains_have_the_sizes_and_starts_of_the_paper() -> None:
    for form, size, start in (
        ("rezero", 1, 0.0), ("fixup", 1, 1.0), ("scalar", 1, 0.3), ("layer_scale", 6, 0.3),
    ):  # fmt: skip
        scale = Residual(FeedForward(6, 10), 6, "second", form=form, start=0.3).scale
        assert scale is not None and torch.equal(scale.gain, torch.full((size,), start))
    assert Residual(FeedForward(6, 10), 6, "second", form="pre_norm").scale is None
    x = torch.randn(2, 3, 6)
    assert torch.equal(Residual(FeedForward(6, 10), 6, "second", form="rezero")(x), x)


def test_stochastic_depth_leaves_out_the_branch_only() -> None:
    torch.manual_seed(0)
    residual, x = make("layer_scale", rate=0.5).train(), torch.randn(64, 2, 6, dtype=torch.float64)
    change = residual(x) - x
    full = by_equation(residual, "layer_scale", x) - x
    kept = change.flatten(1).abs().sum(1) > 0
    assert 16 < kept.sum() < 48
    torch.testing.assert_close(change[kept], 2 * full[kept])


def test_branches_without_norms_start_small_in_deep_networks() -> None:
    torch.manual_seed(0)
    branches = [FeedForward(200, 200) for _ in range(16)]
    layers = [(branch.first.weight, branch.second) for branch in branches]
    before = copy.deepcopy(branches[0].state_dict())
    start_by_depth("layer_scale", layers)
    assert all(torch.equal(value, before[name]) for name, value in branches[0].state_dict().items())
    start_by_depth("fixup", layers)
    assert branches[3].first.weight.std().item() == pytest.approx((2 / 200) ** 0.5 / 16**0.5, rel=0.05)
    assert not branches[3].second.weight.any()
    start_by_depth("t_fixup", layers)
    xavier = (2 / 400) ** 0.5
    for weight in (branches[3].first.weight, branches[3].second.weight):
        assert weight.std().item() == pytest.approx(xavier * 0.67 * 8**-0.25, rel=0.05)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="residual is 'post_norm'"):
        Residual(FeedForward(6, 10), 6, "second", form="post_norm")
    with pytest.raises(UsageError, match="residual is 'rezro'"):
        start_by_depth("rezro", [])
    wrong = Residual(nn.Sequential(nn.Linear(6, 6), nn.GELU()), 6, "1")
    with pytest.raises(UsageError, match="last is '1', a GELU"):
        folded(wrong)
