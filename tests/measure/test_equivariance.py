"""Equivariance: poses whose law is known."""

import math

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.measure import compare_poses, equivariance
from mereo.measure.equivariance import errors_of_linear_fit, shift, turn, why_no_fit


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_linear_law_is_detected():
    before, labels = gaussian(120, 4), torch.arange(120) % 3
    maps = gaussian(3, 4, 4, seed=1)
    after = torch.einsum("nij,nj->ni", maps[labels], before) + 2
    moved = compare_poses(10.0, before, after, labels)
    assert moved.linear > 0.999 and set(moved.by_class) == {0, 1, 2} and min(moved.by_class.values()) > 0.999
    assert moved.unmoved < 0 and moved.permuted < 0.1


def test_what_does_not_move_is_invariant():
    before, labels = gaussian(60, 3), torch.zeros(60, dtype=torch.int64)
    moved = compare_poses(0.0, before, before, labels)
    assert moved.unmoved == 1 and moved.linear > 0.999
    assert moved.length == pytest.approx(1) and moved.angle == pytest.approx(0, abs=1e-3)


def test_noise_is_neither():
    before, after, labels = gaussian(200, 4), gaussian(200, 4, seed=5), torch.zeros(200, dtype=torch.int64)
    moved = compare_poses(1.0, before, after, labels)
    assert abs(moved.linear) < 0.1 and abs(moved.permuted) < 0.1 and moved.unmoved < -0.5


def test_length_and_angle():
    before = torch.tensor([[1.0, 0.0]] * 10)
    moved = compare_poses(1.0, before, torch.tensor([[0.0, 0.5]] * 10), torch.zeros(10, dtype=torch.int64))
    assert moved.length == pytest.approx(0.5) and moved.angle == pytest.approx(90)
    # The poses do not differ among the images, so there is nothing to explain.
    assert math.isnan(moved.linear) and moved.by_class == {} and moved.to_dict()["linear"] is None


def test_small_classes_are_left_out():
    labels = torch.tensor([0] * 20 + [1] * 9)
    moved = compare_poses(1.0, gaussian(29, 2), gaussian(29, 2, seed=3), labels)
    assert set(moved.by_class) == {0}
    assert math.isnan(compare_poses(1.0, gaussian(9, 2), gaussian(9, 2), labels[20:]).linear)


def test_why_there_is_no_fit():
    few, enough = torch.tensor([0] * 9 + [1] * 6), torch.tensor([0] * 10 + [1] * 6)
    poses = gaussian(16, 2)
    assert why_no_fit([compare_poses(1.0, poses, 2 * poses, enough)], enough) is None
    reason = why_no_fit([compare_poses(1.0, poses[:15], poses[:15], few)], few)
    assert reason is not None and "(9)" in reason and "10" in reason
    still = torch.ones_like(poses)
    assert "do not differ" in str(why_no_fit([compare_poses(1.0, still, still, enough)], enough))


def test_errors_are_those_of_held_out_images():
    before, after = gaussian(23, 3), gaussian(23, 2, seed=1)
    # Against a fit of the best penalty, found by trying all, with plain least squares.
    best = math.inf
    for ridge in (1e-3, 1e-2, 1e-1, 1.0, 10.0):
        total = 0.0
        for fold in range(5):
            train = [i for i in range(23) if i % 5 != fold]
            x, y = before[train], after[train]
            xm, ym = x.mean(0), y.mean(0)
            scale = ridge * float((x - xm).square().sum()) / 3
            rows = torch.cat([x - xm, math.sqrt(scale) * torch.eye(3, dtype=torch.float64)])
            fit = torch.linalg.lstsq(rows, torch.cat([y - ym, torch.zeros(3, 2, dtype=torch.float64)])).solution
            total += sum(float(((before[i] - xm) @ fit + ym - after[i]).square().sum()) for i in range(fold, 23, 5))
        best = min(best, total)
    assert float(errors_of_linear_fit(before, after).sum()) == pytest.approx(best)


def test_transforms_move_as_they_say():
    images = torch.zeros(1, 1, 11, 11)
    images[..., 5, 8] = 1
    assert shift(images, 100 * 2 / 11)[0, 0, 5, 10] == 1
    assert float(turn(images, 90.0)[0, 0].flatten().max()) == pytest.approx(1, abs=1e-4)
    assert torch.equal(turn(images, 0.0).argmax(), images.argmax())


def test_a_network(digits_like):
    torch.manual_seed(0)
    network = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=4).train()
    found, poses, labels = equivariance("rotation", network, digits_like, amounts=(0.0, 20.0), batch_size=16)
    assert [m.amount for m in found] == [0.0, 20.0] and network.training
    assert poses.shape[:2] == (2, 40) and torch.equal(labels, digits_like.labels)
    assert found[0].unmoved == 1 and found[1].unmoved < 1
    other, _, _ = equivariance("rotation", network, digits_like, amounts=(20.0,), batch_size=7)
    assert other[0].linear == pytest.approx(found[1].linear, abs=1e-4)


def test_images_of_several_objects_are_refused(network, digits_like):
    from mereo.data import OverlaidPairs

    with pytest.raises(UsageError, match="attacks and equivariance are for one"):
        equivariance("shift", network, OverlaidPairs(digits_like))
