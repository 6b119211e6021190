"""The bridge of a detector: its configurations, its losses, and its keypoints."""

import torch

from mereo.core import added_losses
from mereo.layers.bridge import HOSTS, Bridge


def test_the_released_configurations_count_as_their_parts() -> None:
    for name in ("retinanet_r50", "atss_x101"):
        bridge = Bridge(256, 80, log_scale=True, exact=False, unit=8, **HOSTS[name])
        shared = 2_056 if name == "atss_x101" else 0
        assert sum(p.numel() for p in bridge.parameters()) == 3 * 2_550_354 + 793_616 - shared


def test_it_helps_both_branches_and_learns_keypoints_in_training() -> None:
    bridge = Bridge(8, num_heads=2, cells=9, most=6, tower=0, branch=0)
    maps, classing, placing = ([torch.randn(2, 8, 4, 3), torch.randn(2, 8, 2, 2)] for _ in range(3))
    boxes = torch.tensor([[[4.0, 4.0, 20.0, 18.0]], [[0.0, 0.0, 0.0, 0.0]]])
    outputs = bridge(maps, classing, placing, (8, 16))
    assert [[x.shape for x in levels] for levels in outputs] == [[x.shape for x in maps]] * 2
    bridge.add_losses(boxes, torch.tensor([[0], [-1]]), (8, 16))
    terms = added_losses(bridge)
    assert set(terms) == {"keypoint_scores", "keypoint_offsets"}
    # At the start a score is 1 %, whatever the object: three kinds, a peak on both levels of the first image.
    loss = (sum(terms.values()) + sum(x.square().mean() for levels in outputs for x in levels)).sum()
    loss.backward()
    idle = {name for name, p in bridge.named_parameters() if p.grad is None}
    assert not idle
    # A cell of a level sees the keys of the other level: the first image's keys are shared.
    keys = bridge.chosen["centre"]
    assert keys.places.shape == (2, 6, 2) and bool((keys.cells >= 12).any())
    bridge.eval()(maps, classing, placing, (8, 16))
    bridge.add_losses(boxes, torch.tensor([[0], [-1]]), (8, 16))
    assert not added_losses(bridge)


def test_the_unit_is_half_the_stride_unless_given() -> None:
    torch.manual_seed(0)
    own = Bridge(8, num_heads=2, cells=33, tower=0, branch=0, unit=None).eval()
    fixed = Bridge(8, num_heads=2, cells=33, tower=0, branch=0, unit=4).eval()
    fixed.load_state_dict(own.state_dict())
    maps = [torch.randn(1, 8, 4, 4)]
    with torch.no_grad():
        for bridge in (own, fixed):
            bridge.classing.location.weight.mul_(100)
        pairs = [[b(maps, maps, maps, (s,))[0][0] for b in (own, fixed)] for s in (8, 16)]
    torch.testing.assert_close(*pairs[0])
    assert not torch.allclose(*pairs[1])
