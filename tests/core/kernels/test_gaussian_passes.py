"""Gaussians fitted without stored votes: compiled and streamed against stored votes, outputs and gradients."""

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import gaussian_passes, library
from mereo.core.kernels.gaussian_passes import fitted
from mereo.core.kernels.gaussians import Floor

METHODS = ["streamed", pytest.param("compiled", marks=pytest.mark.skipif(bool(library.missing), reason="not built"))]
SIZES = [(5, 13, 3, 4, 4, 4), (3, 20, 2, 4, 6, 4), (4, 7, 3, 1, 5, 3), (2, 40, 2, 2, 3, 5)]
Result = list[Tensor]


def run(method: str, inputs: tuple[Tensor, ...], floor: Floor, with_fit: bool) -> Result:
    """Outputs, and gradients of a weighted sum of them."""
    poses, weight, weights = (x.clone().requires_grad_() for x in inputs)
    outputs = [x for x in fitted(poses, weight, weights, floor, with_fit=with_fit, method=method) if x is not None]
    maker = torch.Generator().manual_seed(1)
    sum((x * torch.randn(x.shape, generator=maker).to(x)).sum() for x in outputs).backward()
    return [x.detach() for x in (*outputs, poses.grad, weight.grad, weights.grad)]


def some(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    windows, senders, receivers, rows, inner, columns = sizes
    torch.manual_seed(0)
    weights = torch.rand(windows, receivers, senders, dtype=dtype)
    weights[0, 0] = 0
    poses, weight = torch.randn(windows, senders, rows, inner), torch.randn(receivers, senders, inner, columns)
    return poses.to(dtype), weight.to(dtype), weights


@pytest.mark.parametrize("floor", [Floor(1e-2), Floor(0.3, clamps=True)])
@pytest.mark.parametrize("with_fit", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_equals_stored_votes(method: str, sizes: tuple[int, ...], with_fit: bool, floor: Floor) -> None:
    inputs = some(sizes)
    for found, expected in zip(
        run(method, inputs, floor, with_fit), run("stored", inputs, floor, with_fit), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("senders", [1, 7])
@pytest.mark.parametrize("method", ["stored", *METHODS])
def test_equal_votes_are_as_exact_as_others(method: str, senders: int) -> None:
    """No vote is away from its mean, and 1 / floor must not magnify rounding errors: compared with float64."""
    poses, weight, weights = some((16, senders, 3, 2, 2, 2))
    inputs = poses[:, :1].expand_as(poses), weight[:, :1].expand_as(weight), weights
    precise = run("stored", tuple(x.double() for x in inputs), Floor(1e-6), True)
    for got, expected in zip(run(method, inputs, Floor(1e-6), True), precise, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-3)


def test_several_tiles_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_passes, "TILE_BYTES", 1 << 12)
    inputs = some((7, 9, 3, 2, 2, 3), torch.float64)
    assert len(gaussian_passes._tiles(*inputs[:2])) > 2
    for found, expected in zip(*(run(each, inputs, Floor(1e-6), True) for each in ("streamed", "stored")), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [0.0, 1e16])
def test_finite_on_zeros_and_huge_poses(method: str, scale: float) -> None:
    poses, weight, weights = some(SIZES[0])
    outputs = run(method, (poses.sign() * scale, weight, weights), Floor(1e-6), True)
    assert all(x.isfinite().all() for x in outputs[:3])


def test_gradients_of_gradients() -> None:
    poses, weight, weights = some((2, 5, 2, 2, 2, 2), torch.float64)
    inputs = tuple(x.requires_grad_() for x in (poses, weight, weights + 0.1))
    call = lambda *x: fitted(*x, Floor(1e-2), method="streamed")  # noqa: E731
    assert torch.autograd.gradgradcheck(call, inputs)
