"""Patch capsules: which patch is which capsule, what is added where, and what lies beyond the last whole patch."""

import pytest
import torch

from mereo.layers.capsules import PatchifyCapsules


@torch.no_grad()
@pytest.mark.parametrize(("sides", "size"), [((6, 9), 3), ((7, 8), 3), ((4, 4), 4), ((5, 4), 1)])
def test_against_loops(sides: tuple[int, int], size: int) -> None:
    rows, columns = sides[0] // size, sides[1] // size
    patchify = PatchifyCapsules(3, 4, size, (rows, columns)).double()
    for parameter in patchify.parameters():
        parameter.normal_()
    features = torch.randn(2, 3, *sides, dtype=torch.float64)
    capsules = patchify(features)
    assert capsules.shape == (2, rows * columns, 4)
    matrix = patchify.proj.weight[:, :, 0, 0]
    for b in range(2):
        for r in range(rows):
            for c in range(columns):
                patch = features[b, :, r * size : (r + 1) * size, c * size : (c + 1) * size]
                u = matrix @ patch.sum((1, 2)) / size**2 + patchify.proj.bias + patchify.position[r * columns + c]
                u = (u - u.mean()) / (u.var(correction=0) + patchify.norm.eps).sqrt()
                expected = u * patchify.norm.weight + patchify.norm.bias
                torch.testing.assert_close(capsules[b, r * columns + c], expected)


@torch.no_grad()
def test_one_lit_patch_changes_one_capsule_in_raster_order() -> None:
    patchify = PatchifyCapsules(2, 4, 2, (3, 5))
    dark = patchify(torch.zeros(1, 2, 6, 10))
    for number in range(15):
        row, column = divmod(number, 5)
        features = torch.zeros(1, 2, 6, 10)
        features[..., 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 1
        changed = (patchify(features) - dark).abs().amax((0, 2)) > 1e-6
        assert changed.nonzero().flatten().tolist() == [number]


@torch.no_grad()
def test_the_border_beyond_the_last_whole_patch_is_left_out() -> None:
    patchify = PatchifyCapsules(1, 4, 3, (2, 2))
    features = torch.rand(1, 1, 8, 7)
    changed = features.clone()
    changed[..., 6:, :] = 9
    changed[..., :, 6:] = 9
    assert torch.equal(patchify(features), patchify(changed))


def test_start() -> None:
    torch.manual_seed(0)
    patchify = PatchifyCapsules(64, 32, 4, (16, 16))
    assert patchify.proj.weight.std().item() == pytest.approx((2 / (64 + 32)) ** 0.5, rel=0.05)
    assert (patchify.proj.bias == 0).all()
    assert patchify.position.std().item() == pytest.approx(0.02, rel=0.05)


def test_huge_features_stay_finite() -> None:
    patchify = PatchifyCapsules(2, 4, 2, (2, 2))
    features = (1e30 * torch.randn(1, 2, 4, 4)).requires_grad_()
    capsules = patchify(features)
    capsules.sum().backward()
    assert capsules.isfinite().all() and features.grad is not None and features.grad.isfinite().all()
