"""Options of a training: their exact arithmetic, and that each resumes bit for bit."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mereo.data import Batch, ImageSet
from mereo.errors import UsageError
from mereo.models import create_model
from mereo.models.weights import load_tensors
from mereo.tasks.classification import Classification, ClassificationObjective, hits
from mereo.tasks.losses import spread_loss, spread_margin
from mereo.training.config import TrainConfig
from mereo.training.freezing import freeze
from mereo.training.groups import parameter_groups
from mereo.training.mixing import mix, mix_step
from mereo.training.order import balanced_order
from mereo.training.report import Report
from mereo.training.schedule import learning_rate
from mereo.training.trainer import Trainer, train

OPTIONS = {
    "groups": {"weight_decay_norm": False, "weight_decay": 0.1},
    "layers": {"layer_decay": 0.5, "ema_decay": 0.9},
    "freeze": {"freeze": ["blocks.0"]},
    "slower early layers": {"freeze_layers": 1, "layer_decay": 0.5},
    "linear probe": {"freeze": ["backbone"], "ema_decay": 0.9},
    "smoothing": {"loss": "cross_entropy", "label_smoothing": 0.1},
    "mixup": {"mixup": 0.4},
    "both mixes, in parts": {"mixup": 0.4, "cutmix": 1.0, "loss": "cross_entropy", "accumulate": 2},
    "spread": {"loss": "spread"},
    "steps": {"warmup_steps": 2, "decay_steps": 4, "adam_beta2": 0.9},
    "balanced": {"sampler": "balanced"},
}


FEW = ("layers", "both mixes, in parts")
"""Those that `make test` resumes; seconds each."""


class StoppedError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize(
    "option", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in OPTIONS]
)
def test_a_stopped_run_resumes_bit_for_bit(small_config, silent, monkeypatch, option):
    changes = {"checkpoint_seconds": 1e-9, **OPTIONS[option]}
    whole = train(small_config(name="whole", **changes), silent)
    plain = train(small_config(name="plain"), silent) if option == "steps" else None
    optimise, calls = Trainer.optimise, []

    def stopping(self, *arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise StoppedError
        return optimise(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(Trainer, "optimise", stopping)
        train(small_config(name="part", **changes), silent)
    resumed = train(small_config(name="part", resume=True, **changes), silent)
    for file in ("last", "best"):
        a, b = (load_tensors(getattr(result.folder, file))[0] for result in (whole, resumed))
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert whole.test_last == resumed.test_last
    if plain is not None:
        assert plain.test_last != whole.test_last


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 6 * 6, 3))


def capsnet():
    return create_model("capsnet", conv_channels=8, primary_types=2, decoder=False)


def test_norms_and_biases_do_not_decay_as_in_timm():
    from timm.optim import param_groups_weight_decay

    model = capsnet()
    config = TrainConfig(weight_decay=0.05, weight_decay_norm=False)
    ours = {id(p): g["weight_decay"] for g in parameter_groups(config, model, model) for p in g["params"]}
    theirs = {
        id(p): g["weight_decay"]
        for g in param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
        for p in g["params"]
    }
    assert ours == theirs and set(ours.values()) == {0.0, 0.05}


def test_layers_decay_by_their_distance_from_the_head():
    model = capsnet()
    groups = parameter_groups(TrainConfig(layer_decay=0.5, weight_decay=0.1), model, model)
    scales = {id(p): g["lr_scale"] for g in groups for p in g["params"]}
    depths = model.layer_depths()
    last = max(depths.values())
    assert last > 0 and depths["head.weight"] == last and depths["conv.weight"] == 0
    assert all(scales[id(p)] == 0.5 ** (last - depths[name]) for name, p in model.named_parameters())
    assert {g["weight_decay"] for g in groups} == {0.1}


def test_what_the_network_leaves_out_is_trained_too():
    model = capsnet()
    objective = nn.ModuleDict({"model": model, "more": nn.Linear(2, 3)})
    *groups, rest = parameter_groups(TrainConfig(layer_decay=0.25, weight_decay=0.1), objective, model)
    assert rest["lr_scale"] == 1.0 and {id(p) for p in rest["params"]} == {
        id(p) for p in objective["more"].parameters()
    }
    assert {id(p) for g in groups for p in g["params"]} == {id(p) for p in model.parameters()}


def test_rates_follow_the_scales(small_config, silent):
    from mereo.training.run_folder import RunFolder
    from mereo.training.setup import prepare

    config = small_config(layer_decay=0.5, warmup_epochs=0, schedule="constant", lr=0.1)
    trainer = Trainer(prepare(config), RunFolder(silent_path(config)), silent)
    trainer.optimise(0, 0, trainer.sampler(0))
    rates = {group["lr"] for group in trainer.optimizer.param_groups}
    assert max(rates) == 0.1 and min(rates) < 0.1
    assert all(g["lr"] == 0.1 * g["lr_scale"] for g in trainer.optimizer.param_groups)


def silent_path(config):
    from pathlib import Path

    return Path(config.output) / "run"


@pytest.mark.long
def test_frozen_parts_do_not_change(small_config, silent):
    result = train(small_config(freeze=["blocks.0"], weight_decay=0.1), silent)
    start = train(small_config(name="start", epochs=1, lr=1e-12, freeze=["blocks.0"]), silent)
    a, b = (load_tensors(r.folder.last)[0] for r in (result, start))
    frozen = [name for name in a if name.startswith("blocks.0.")]
    assert any("running_mean" in name for name in frozen)
    assert all(torch.equal(a[name], b[name]) for name in frozen)
    assert not torch.equal(a["head.weight"], b["head.weight"])


@pytest.mark.parametrize("pattern", ["1", "1.weight", "*.weight"])
def test_freezing_takes_modules_and_patterns(pattern):
    model = small_net()
    norms = freeze(model, [pattern, "1.bias"])
    assert not model[1].weight.requires_grad and norms == [model[1]]
    assert model[3].bias.requires_grad


@pytest.mark.parametrize(("patterns", "fact"), [(["stem"], "stem"), (["*"], "every parameter")])
def test_freezing_nothing_or_everything_is_refused(patterns, fact):
    with pytest.raises(UsageError, match=fact):
        freeze(small_net(), patterns)


def test_spread_loss_is_its_double_sum():
    scores, labels, margin = torch.rand(4, 5, dtype=torch.float64), torch.tensor([0, 4, 2, 2]), 0.4
    expected = 0.0
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        expected += sum(max(0, margin - (row[label] - v)) ** 2 for j, v in enumerate(row) if j != label)
    assert spread_loss(scores, labels, margin).item() == pytest.approx(expected / 4)


def test_the_margin_of_spread_loss_rises_linearly_with_the_step():
    assert [spread_margin(step, 8) for step in (0, 7, 99)] == pytest.approx([0.2, 0.9, 0.9])
    assert spread_margin(3, 7) == pytest.approx(0.55)
    objective = ClassificationObjective(small_net(), "spread")
    batch = Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    for step in (0, 5, 9):
        objective.at_step(step, 10)
        loss, scores = objective(batch)
        torch.testing.assert_close(loss, spread_loss(scores, batch.labels, spread_margin(step, 10)))
    assert "margin" not in objective.state_dict()


def test_smoothing_is_in_training_alone():
    model, batch = small_net().eval(), Batch(torch.rand(3, 1, 8, 8), torch.tensor([0, 2, 1]))
    objective = ClassificationObjective(model, "cross_entropy", label_smoothing=0.3)
    loss, scores = objective(batch)
    target = 0.7 * F.one_hot(batch.labels, 3) + 0.1
    torch.testing.assert_close(loss, -(target * scores.log_softmax(1)).sum(1).mean())
    torch.testing.assert_close(objective.loss(scores, batch), F.cross_entropy(scores, batch.labels))


def images_of(count):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return ImageSet(images, torch.arange(count) % 3, ("a", "b", "c"))


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.5, 0.0), (0.0, 1.0), (0.3, 0.7)])
def test_shares_of_a_mixed_batch_make_up_the_whole(mixup, cutmix):
    data, count = images_of(8), 8

    def take(share):
        return data.batch(torch.arange(count), share=share)

    for step in range(4):
        how = {"num_classes": 3, "mixup": mixup, "cutmix": cutmix, "seed": 1, "step": step}
        whole = mix_step(take, slice(0, 8), count, **how)
        halves = [mix_step(take, slice(start, start + 4), count, **how) for start in (0, 4)]
        for field in ("images", "labels"):
            joined = torch.cat([getattr(half, field) for half in halves])
            assert torch.equal(getattr(whole, field), joined)
        torch.testing.assert_close(whole.labels.sum(1), torch.ones(count))
        assert not torch.equal(whole.images, take(slice(0, 8)).images)


def test_mixup_is_a_weighted_mean_of_an_image_and_the_one_before():
    data = images_of(5)
    batch = data.batch(torch.arange(5))
    mixed = mix(batch, 3, 0.5, 0.0, seed=3)
    share = mixed.labels[0, 1]  # image 1 is of class 1, image 0 of class 0
    expected = share * batch.images[1:] + (1 - share) * batch.images[:-1]
    torch.testing.assert_close(mixed.images, expected)
    soft = share * F.one_hot(batch.labels[1:], 3) + (1 - share) * F.one_hot(batch.labels[:-1], 3)
    torch.testing.assert_close(mixed.labels, soft)


def test_cutmix_labels_are_the_shares_of_the_area():
    ones = torch.arange(2).view(2, 1, 1, 1).expand(2, 1, 8, 8).float()
    mixed = mix(Batch(ones, torch.tensor([0, 1])), 2, 0.0, 1.0, seed=5)
    assert mixed.images.mean() == pytest.approx(mixed.labels[0, 1].item())


def test_mixing_leaves_the_global_generator_as_it_was():
    before = torch.get_rng_state()
    mix(images_of(4).batch(torch.arange(4)), 3, 0.5, 0.5, seed=0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"loss": "spread", "mixup": 0.5}, "spread"),
        ({"loss": "margin", "cutmix": 0.5}, "reconstruction_weight"),
        ({"loss": "margin", "label_smoothing": 0.1}, "label_smoothing"),
    ],
)
def test_options_that_exclude_each_other_are_refused(settings, fact):
    model = create_model("capsnet", img_size=20, conv_channels=4, primary_types=2)
    with pytest.raises(UsageError, match=fact):
        Classification().objective(model, TrainConfig().replace(**settings))


def test_a_network_without_capsules_is_trained_by_cross_entropy():
    task = Classification()
    assert task.resolve_loss("auto", nn.Sequential) == "cross_entropy"
    assert task.resolve_loss("auto", type(create_model("capsnet"))) == "margin"
    assert task.resolve_loss("margin", nn.Sequential) == "margin"
    batch = Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    loss, scores = task.objective(small_net(), dataclasses.replace(TrainConfig(), loss="cross_entropy"))(batch)
    torch.testing.assert_close(loss, F.cross_entropy(scores, batch.labels))


@pytest.mark.parametrize("counts", [(50, 5, 1), (10, 10), (7,), (3, 30, 300)])
def test_a_balanced_epoch_shows_every_class_equally_often(counts):
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    order = balanced_order(0, 1, labels)
    assert len(order) == len(labels)
    seen = torch.bincount(labels[order])
    assert seen.max() - seen.min() <= 1
    for label in range(len(counts)):
        often = torch.bincount(order, minlength=len(labels))[labels == label]
        assert often.max() - often.min() <= 1, "images of a class are shown equally often too"
    assert torch.equal(order, balanced_order(0, 1, labels))
    assert len(labels) < 8 or not torch.equal(order, balanced_order(0, 2, labels))


def test_schedules_over_steps():
    config = TrainConfig(lr=1.0, min_lr=0.0, warmup_steps=4, warmup_start=0.0, decay_steps=10, epochs=100)
    assert [learning_rate(config, step, 7) for step in (0, 2, 4, 9, 14, 500)] == pytest.approx([0, 0.5, 1, 0.5, 0, 0])
    stated = TrainConfig(lr=1.0, warmup_epochs=9.0, warmup_steps=0)
    assert learning_rate(stated, 0, 7) == 1.0


def test_soft_labels_count_for_their_heaviest_class():
    soft = torch.tensor([[0.2, 0.8], [0.7, 0.3]])
    assert hits(torch.tensor([[0.1, 0.9], [0.1, 0.9]]), soft).tolist() == [[True], [False]]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"sampler": "sorted"}, "sampler"),
        ({"layer_decay": 1.5}, "layer_decay"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"mixup": -1.0}, "mixup"),
        ({"cutmix": float("nan")}, "cutmix"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"loss": "spred"}, "spread"),
        ({"freeze": ["steam"]}, "steam"),
        ({"freeze_layers": -1}, "freeze_layers is -1"),
        ({"freeze_layers": 5}, "freeze_layers is 5; this network has 5 layers.*at most 4"),
        ({"freeze_until": "blocks.9"}, "blocks.9.*did you mean"),
        ({"freeze_until": "head"}, "freeze_until is 'head', in the last layer"),
        ({"freeze": ["backbone", "head"]}, "every parameter"),
    ],
)
def test_invalid_options_are_named(small_config, changes, fact):
    with pytest.raises(UsageError, match=fact):
        train(small_config(**changes), Report(silent=True))


def test_a_network_with_groups_of_its_own_is_trained_without_a_factor_by_layer():
    model = create_model("mspcaps_tiny")
    groups = list(parameter_groups(TrainConfig(weight_decay=0.1, weight_decay_norm=False), model, model))
    assert {group["lr_scale"] for group in groups} == {1.0} and {g["weight_decay"] for g in groups} == {0.0, 0.1}
