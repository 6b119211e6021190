"""Self-guided attention over scales: shapes, parameters and losses of the published network."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.cli.main import main
from mereo.core.added_loss import weigh_losses
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models.registry import outline
from mereo.models.vision.self_guided import SelfGuidedNetwork
from mereo.tasks.segmentation import SegmentationObjective, dice_loss, pixel_loss

FOUR = {"widths": (4, 6, 8, 8), "blocks": 1, "stem_stride": 4}


def make(**arguments: Any) -> SelfGuidedNetwork:
    torch.manual_seed(0)
    return SelfGuidedNetwork(**{"backbone_args": FOUR, "width": 8, "img_size": 32, **arguments})


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_published_network_has_its_parameters() -> None:
    model = outline("self_guided_resnext101")
    assert count(model.backbone) == 86_736_064
    assert count(model) - count(model.backbone) == 16_819_999
    # The authors' code also builds 8 convolutions 1x1 of 64 channels, and two for each scale of 128 to 64 channels
    # in three steps, of which one has no PReLU; it calls none of them.
    three_steps = 128 * 64 * 9 + 64 * 64 * 9 + 64 * 64 + 3 * (64 + 2 * 64) + 2
    unused = 8 * (64 * 64 + 64) + 4 * three_steps + 4 * (three_steps + 1)
    assert unused == 955_412 and count(model) + unused == 104_511_475
    assert count(model.fuse_scales) == 188_995
    assert [count(each) for each in model.projections] == [16_577, 32_961, 65_729, 131_265]


def test_shapes_of_everything_that_the_losses_read() -> None:
    model, images = make(width=64, img_size=64), torch.rand(2, 1, 64, 64)
    assert model(images).shape == (2, 8, 5, 64, 64)
    own, fused = torch.rand(2, 2, 64, 16, 16)
    refined, codes, pairs = model.refine(own, fused, 3)
    assert refined.shape == (2, 64, 16, 16) and [z.shape for z in codes] == [(2, 512, 4, 4)] * 2
    assert [each.shape for each in pairs] == [(2, 128, 16, 16)] * 4


def test_the_network_is_that_of_its_equations() -> None:
    model, images = make().double().eval(), torch.rand(2, 1, 32, 32, dtype=torch.float64)

    def resized(maps: Tensor, side: int) -> Tensor:
        return F.interpolate(maps, (side, side), mode="bilinear")

    own = [resized(p(x), 8) for p, x in zip(model.projections, model.backbone(images), strict=True)]
    fused = model.fuse_scales(torch.cat([own[3], own[2], own[1], own[0]], 1))
    raw, refined, guide, reconstruction = [], [], 0.0, 0.0
    for s in range(4):
        x = torch.cat([own[s], fused], 1)
        z1, r1 = model.bottlenecks[0](x)
        y = torch.cat([own[s], model.attentions[0][s](x, r1) * fused], 1)
        z2, r2 = model.bottlenecks[1](y)
        refined.append(resized(model.head[s](model.attentions[1][s](y, r2)), 32))
        raw.append(resized(model.raw_head[s](own[s]), 32))
        guide = guide + (z1.flatten() - z2.flatten()).square().mean()
        reconstruction = reconstruction + (x - r1).square().mean() + (y - r2).square().mean()
    torch.testing.assert_close(model(images), torch.stack(refined).mean(0))
    assert mereo.added_losses(model) == {}
    # The outputs of training, with norms and losses as in evaluation and then with the losses of training.
    for module in (model, model.guide, model.reconstruction):
        assert module is not None
        module.training = True
    torch.testing.assert_close(model(images), torch.stack([*raw, *refined], 1))
    added = mereo.added_losses(model)
    torch.testing.assert_close(added["guide"], 0.25 * guide)
    torch.testing.assert_close(added["reconstruction"], 0.1 * reconstruction)


def test_a_second_round_like_the_first_has_nothing_to_be_guided_to() -> None:
    model = make().train()
    model.bottlenecks[1] = copy.deepcopy(model.bottlenecks[0])
    for attention in model.attentions[0]:
        nn.init.zeros_(attention.out.weight)
        nn.init.ones_(attention.out.bias)
    model(torch.rand(2, 1, 32, 32))
    added = mereo.added_losses(model)
    assert added["guide"] == 0 and added["reconstruction"] > 0


def test_gradients_reach_the_weights_of_both_attentions_and_both_sides_of_every_error() -> None:
    model = make().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    objective = SegmentationObjective(model, 0.0)
    batch = Batch(torch.rand(2, 1, 32, 32), masks=torch.randint(5, (2, 32, 32)))
    for _ in range(2):
        optimizer.zero_grad()
        loss, _ = objective(batch)
        loss.backward()
        optimizer.step()
    assert loss.isfinite() and all(term.isfinite() for term in objective.added.values())
    reached = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {n for n, _ in model.named_parameters()}
    # The bottlenecks see no loss but the added ones where the gates ignore them.
    for rounds in model.attentions:
        for attention in rounds:
            nn.init.zeros_(attention.gate.weight)
    model.zero_grad()
    model(batch.images)
    mereo.added_losses(model)["guide"].backward()
    assert all(bottleneck.encoder[0][0].weight.grad.any() for bottleneck in model.bottlenecks)


def test_the_objective_sums_the_losses_of_all_maps_and_measures_their_mean() -> None:
    model = make().train()
    batch = Batch(torch.rand(2, 1, 32, 32), masks=torch.randint(-1, 5, (2, 32, 32)))
    maps = model(batch.images)
    weigh_losses(model, {"guide": 0.0, "reconstruction": 0.0})
    assert batch.masks is not None
    for dice in (0.0, 0.5):
        loss, scores = SegmentationObjective(model, dice)(batch)
        each = [pixel_loss(maps[:, i], batch.masks) + dice * dice_loss(maps[:, i], batch.masks) for i in range(8)]
        torch.testing.assert_close(loss, sum(each))
        torch.testing.assert_close(scores, maps.mean(1))


def test_parts_can_be_left_out() -> None:
    with torch.device("meta"):
        model = make(rounds=1)
        assert model.guide is None and model.reconstruction is not None and len(model.bottlenecks) == 1
        plain = make(gated=False)
        assert plain.guide is None and plain.reconstruction is None and not plain.bottlenecks
        assert list(make(attention="position").attentions[1][2].branches) == ["position"]
    with pytest.raises(UsageError, match="rounds is 3"):
        make(rounds=3)
    with pytest.raises(UsageError, match="guide_weight is -1"):
        make(guide_weight=-1)
    with pytest.raises(UsageError, match=r"\(2, 1, 32, 30\)"):
        make()(torch.rand(2, 1, 32, 30))


@pytest.mark.long
def test_it_trains_by_the_command_with_its_added_losses(tmp_path: Path) -> None:
    words = "train --task segmentation --data shape_masks --model self_guided_small --limit 32 --epochs 1 --device cpu"
    more = ["--loss-weights", "guide=0.5", "--model-args", "width=4", "--output", str(tmp_path / "run")]
    assert main([*words.split(), *more]) == 0
    (history,) = tmp_path.rglob("results.csv")
    assert {"train_guide", "train_reconstruction"} <= set(history.read_text().splitlines()[0].split(","))
