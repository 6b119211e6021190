"""The attention diversification loss: worked numbers, invariances, and its place in a training."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.tasks.classification import Classification
from mereo.training.attention_diversity import AttentionDiversity, attention_diversification_loss
from mereo.training.config import TrainConfig
from mereo.training.plan import make_plan
from mereo.training.regularisers import regularise
from mereo.training.trainer import train

ROWS = ((0.7, 0.2, 0.05, 0.05), (0.6, 0.3, 0.05, 0.05), (0.1, 0.1, 0.7, 0.1), (0.25, 0.25, 0.25, 0.25))
SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 16, "num_heads": 2, "patch_size": 4}


@pytest.mark.parametrize(("threshold", "expected"), [(2.0, 0.0), (1.0, 0.533783), (0.0, 0.837286)])
def test_worked_numbers(threshold: float, expected: float) -> None:
    found = attention_diversification_loss([torch.tensor(ROWS)[None, None]], threshold)
    assert abs(found.item() - expected) < 1e-6


def test_known_maps() -> None:
    one = torch.zeros(1, 2, 6, 6)
    one[..., 3] = 1
    assert attention_diversification_loss([one]) == 1
    identity = torch.eye(6)[None, None]
    assert abs(attention_diversification_loss([identity], 0.0).item() - 6**-0.5) < 1e-6
    assert attention_diversification_loss([identity]) == 0
    uniform = torch.full((1, 1, 5, 5), 0.2)
    assert attention_diversification_loss([uniform]) == 0 and attention_diversification_loss([uniform], 0.0) > 0.999


def test_loops_and_permutations() -> None:
    maps = [torch.randn(2, 3, 9, 9).mul(2).softmax(-1).double() for _ in range(2)]
    layers = []
    for each in maps:
        cosines = []
        for image in each.mean(1):
            mean = image.mean(0)
            mean = torch.where(mean > 1 / 9, mean, 0)
            for row in image:
                kept = torch.where(row > 1 / 9, row, 0)
                cosines.append(torch.dot(mean, kept) / (mean.norm() * kept.norm()))
        layers.append(sum(cosines) / len(cosines))
    found = attention_diversification_loss(maps, 1.0)
    torch.testing.assert_close(found, sum(layers) / 2)
    order = torch.randperm(9)
    torch.testing.assert_close(attention_diversification_loss([each[..., order] for each in maps], 1.0), found)
    torch.testing.assert_close(attention_diversification_loss([each[:, :, order] for each in maps], 1.0), found)
    alone = attention_diversification_loss([each[:1] for each in maps], 1.0)
    other = attention_diversification_loss([each[1:] for each in maps], 1.0)
    torch.testing.assert_close((alone + other) / 2, found)


def objective_of(model: Any, **changes: Any) -> Any:
    config = dataclasses.replace(TrainConfig(), loss="cross_entropy", diversify_attention=True, **changes)
    return regularise(Classification().objective(model, config), config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_adds_the_loss_of_all_layers_without_the_class_token(dtype: torch.dtype) -> None:
    model = mereo.create_model("vit_tiny", num_classes=3, img_size=16, **SMALL).to(dtype)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(20)
    objective = objective_of(model, loss_weights={"attention_diversity": 0.5})
    batch = Classification(("a", "b", "c")).example(model, 4)
    batch = batch._replace(images=batch.images.to(dtype))
    loss, scores = objective(batch)
    with mereo.record(model) as trace:
        model(batch.images)
    maps = [trace[name][..., 1:, 1:] for name in trace]
    expected = 0.5 * attention_diversification_loss(maps)
    torch.testing.assert_close(objective.added["attention_diversity"], expected.detach())
    torch.testing.assert_close(loss, objective.loss(scores, batch) + expected)
    loss.backward()
    assert model.blocks[0].attn.qkv.weight.grad.isfinite().all() and expected > 0
    objective.regularisers[0].added.loss_weight = 1e3
    plain = model.blocks[1].attn.qkv.weight.grad.clone()
    model.zero_grad()
    objective(batch)[0].backward()
    change = (model.blocks[1].attn.qkv.weight.grad - plain).float()
    assert (change[:32].abs().sum(1) > 0).any() and all(
        not m.observers for m in model.modules() if hasattr(m, "observers")
    )
    objective.eval()(batch)
    assert not objective.added


def test_models_without_attention_and_wrong_arguments(small_config: Any) -> None:
    capsules = mereo.create_model("capsnet", conv_channels=8, primary_types=1)
    for model in (nn.Linear(2, 2), capsules):
        with pytest.raises(UsageError, match=type(model).__name__):
            AttentionDiversity().chosen(model)
    with pytest.raises(UsageError, match="layers"):
        AttentionDiversity(layers=[5]).chosen(mereo.create_model("vit_tiny", img_size=16, **SMALL))
    for wrong in ({"weight": -1.0}, {"threshold": math.nan}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            AttentionDiversity(**wrong)
    with pytest.raises(UsageError, match="attention"):
        attention_diversification_loss([torch.rand(3, 3)])
    for given, named in (
        ({"compile": True}, "compile"),
        ({"model": "capsnet", "model_args": {}}, "diversify_attention"),
    ):
        with pytest.raises(UsageError, match=named):
            make_plan(small_config(diversify_attention=True, **given)).build_model()
    with pytest.raises(UsageError, match="MSPCaps"):
        make_plan(small_config(tap=True)).build_model()


def test_a_training_with_pooling_starts_from_weights_without_and_goes_on_with(small_config: Any, silent: Any) -> None:
    vit = {"model": "vit_tiny_patch16_224", "model_args": SMALL, "img_size": 16, "epochs": 1}
    plain = train(small_config(name="plain", **vit), silent, pictures=False)
    both = {**vit, "tap": True, "diversify_attention": True, "attention_adversary": "at"}
    config = small_config(name="both", weights=str(plain.folder.path), **both)
    run = train(config, silent, pictures=False)
    kept = TrainConfig.from_yaml(run.folder.config)
    header = run.folder.history.read_text().partition("\n")[0]
    assert kept.tap and kept.diversify_attention
    assert "train_attention_diversity" in header and "train_attention_adversary" in header
    again = mereo.load(run.folder.path)
    assert [entry["name"] for entry in again.config["surgery"]] == ["tap"]
    more = train(small_config(name="more", weights=str(run.folder.path), **both), silent, pictures=False)
    assert [entry["name"] for entry in more.model.config["surgery"]] == ["tap"]
    resumed = train(config.replace(resume=True), silent, pictures=False)
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
