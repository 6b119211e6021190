"""The engine as a person relies on it: repeatable, resumable, and never choosing on the test images."""

import csv
import json
from itertools import product
from typing import Any

import pytest
import torch

import mereo
from mereo.errors import MereoError, UsageError
from mereo.inference.evaluate import evaluate
from mereo.models.weights import load_tensors
from mereo.runtime.device import choose_device
from mereo.training.backend import arithmetic
from mereo.training.config import TrainConfig
from mereo.training.order import epoch_order
from mereo.training.setup import prepare
from mereo.training.trainer import Trainer, train


def history(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def weights_of(folder):
    return load_tensors(folder.last)[0]


def assert_same_weights(a, b, **tolerance):
    assert a.keys() == b.keys()
    for name in a:
        if tolerance:
            torch.testing.assert_close(a[name], b[name], **tolerance, msg=lambda m, n=name: f"{n}: {m}")
        else:
            assert torch.equal(a[name], b[name]), name


def test_a_run_leaves_everything_in_its_folder(small_config, silent):
    result = train(small_config(tensorboard=True), silent)
    folder = result.folder
    for path in (
        folder.config, folder.state, folder.best, folder.last, folder.history, folder.results, folder.curves,
        folder.train_samples, folder.test_samples,
    ):  # fmt: skip
        assert path.is_file() and path.stat().st_size > 0, path
    assert list(folder.tensorboard.iterdir())
    rows = history(folder.history)
    assert [row["epoch"] for row in rows] == ["1", "2"]
    results = json.loads(folder.results.read_text())
    assert results["chosen_on"] == "validation"
    assert results["test_best"]["count"] == 359
    assert results["parameters"] == sum(p.numel() for p in result.model.parameters())


def test_training_learns(small_config, silent):
    result = train(small_config(limit=400, epochs=12, lr=5e-3, augment=["none"]), silent)
    assert result.test_best.accuracy > 0.6


def test_the_weights_load_by_themselves_and_say_the_same(small_config, silent):
    result = train(small_config(), silent)
    model = mereo.load(result.folder.path)
    assert model.class_names == tuple("0123456789")
    images = torch.rand(3, 1, 16, 16)
    torch.testing.assert_close(model(images), result.model(images))
    assert model.pretrained_cfg["mean"] == (0.5,)


@pytest.mark.long
def test_the_same_seed_gives_the_same_weights_and_another_does_not(small_config, silent):
    first, second = (train(small_config(name=name), silent) for name in ("first", "second"))
    assert_same_weights(weights_of(first.folder), weights_of(second.folder))
    other = train(small_config(name="other", seed=1), silent)
    assert not torch.equal(weights_of(first.folder)["head.weight"], weights_of(other.folder)["head.weight"])


def test_the_saved_configuration_repeats_the_run(small_config, silent):
    first = train(small_config(), silent)
    again = train(TrainConfig.from_yaml(first.folder.config), silent)
    assert again.folder.path.name == "mspcaps_tiny-digits-2"
    assert_same_weights(weights_of(first.folder), weights_of(again.folder))


class StoppedError(Exception):
    """Stands for a kill: it passes every handler of the engine."""


PLAIN: dict[str, Any] = {}
RICH = {
    "ema_decay": 0.9,
    "adversarial": 0.1,
    "adversarial_steps": 1,
    "augment": ["noise=0.1"],
    "attention_adversary": "ivat",
}


@pytest.mark.parametrize(
    ("stop_at", "settings"),
    [
        case if case in ((0, PLAIN), (4, RICH)) else pytest.param(*case, marks=pytest.mark.long)
        for case in product([0, 1, 4, 5], [PLAIN, RICH])
    ],
)
def test_a_stopped_run_goes_on_to_the_same_weights(small_config, silent, monkeypatch, stop_at, settings):
    changes = {"checkpoint_seconds": 1e-9, "epochs": 3, **settings}
    whole = train(small_config(name="whole", **changes), silent)
    optimise, calls = Trainer.optimise, []

    def stopping(self, epoch, step, order):
        calls.append(step)
        if len(calls) == stop_at + 1:
            raise StoppedError
        return optimise(self, epoch, step, order)

    monkeypatch.setattr(Trainer, "optimise", stopping)
    with pytest.raises(StoppedError):
        train(small_config(name="stopped", **changes), silent)
    monkeypatch.setattr(Trainer, "optimise", optimise)
    resumed = train(small_config(name="stopped", resume=True, **changes), silent)
    assert_same_weights(weights_of(whole.folder), weights_of(resumed.folder))
    ours, theirs = (history(r.folder.history) for r in (whole, resumed))
    for a, b in zip(ours, theirs, strict=True):
        assert (a["train_loss"], a["val_accuracy"], a["lr"]) == (b["train_loss"], b["val_accuracy"], b["lr"])


def test_resuming_a_finished_run_only_judges_it_again(small_config, silent):
    done = train(small_config(name="done"), silent)
    before = done.folder.last.read_bytes()
    again = train(small_config(name="done", resume=True), silent)
    assert again.folder.last.read_bytes() == before
    assert again.test_last == done.test_last


def test_resuming_with_another_setting_is_refused(small_config, silent):
    train(small_config(name="run", epochs=1), silent)
    with pytest.raises(UsageError, match=r"lr was 0\.001 and is 0\.01.*--weights .*runs/run and another --name"):
        train(small_config(name="run", epochs=1, lr=0.01, resume=True), silent)


def test_a_name_that_is_taken_is_refused(small_config, silent):
    train(small_config(name="run", epochs=1), silent)
    with pytest.raises(UsageError, match="--resume"):
        train(small_config(name="run", epochs=1), silent)


@pytest.mark.long
def test_parts_of_a_batch_add_up_to_the_whole(small_config, silent):
    # CapsNet has no batch statistics, so that a batch in parts computes the same.
    capsnet = {
        "model": "capsnet",
        "model_args": {"img_size": 20, "conv_channels": 8, "primary_types": 2},
        "epochs": 1,
    }
    whole = train(small_config(name="whole", **capsnet), silent)
    parts = train(small_config(name="parts", accumulate=4, **capsnet), silent)
    assert_same_weights(weights_of(whole.folder), weights_of(parts.folder), rtol=1e-4, atol=2e-5)


def test_an_average_is_what_gets_saved(small_config, silent):
    plain = train(small_config(name="plain"), silent)
    averaged = train(small_config(name="averaged", ema_decay=0.9), silent)
    state, _ = load_tensors(averaged.folder.state)
    assert torch.equal(state["average/head.weight"], weights_of(averaged.folder)["head.weight"])
    # The weights under the average equal the plain run's: averaging does not change training.
    assert torch.equal(state["model/head.weight"], weights_of(plain.folder)["head.weight"])


def test_the_average_follows_its_recursion():
    from mereo.training.averaging import WeightAverage

    linear = torch.nn.Linear(3, 2)
    average = WeightAverage(linear, 0.8)
    expected = linear.weight.detach().clone()
    for step in range(60):
        with torch.no_grad():
            linear.weight += torch.randn_like(linear.weight)
        average.update(step)
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * linear.weight.detach()
    torch.testing.assert_close(average.average["weight"], expected)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_batch(small_config, silent):
    with pytest.raises(MereoError, match=r"step 0 of epoch 1.*--clip-norm") as error:
        config = small_config(mean=[0.0], std=[1e-45], augment=["none"])
        train(config, silent)
    (saved,) = (p for p in (silent_folder(config)).glob("non_finite*"))
    tensors, metadata = load_tensors(saved)
    assert tensors["images"].shape == (32, 1, 16, 16)
    assert metadata == {"epoch": 1, "step": 0}
    assert str(saved) in str(error.value)


def silent_folder(config):
    from pathlib import Path

    return Path(config.output) / "mspcaps_tiny-digits"


def test_the_best_epoch_is_chosen_on_held_out_images(small_config, silent):
    setup = prepare(small_config())
    assert setup.splits.validation is not None
    assert len(setup.splits.train) == 96
    result = train(small_config(paper_protocol=True, epochs=1), silent)
    assert result.results["chosen_on"] == "test"
    rows = history(result.folder.history)
    assert float(rows[0]["val_accuracy"]) == pytest.approx(result.test_last.accuracy)


def test_without_held_out_images_the_last_epoch_counts(small_config, silent, monkeypatch):
    seen = list[list[float]]()
    monkeypatch.setattr("mereo.training.trainer.plateau_share", lambda config, losses: seen.append(losses) or 1.0)
    result = train(small_config(validation_fraction=0.0, epochs=2), silent)
    assert result.results["chosen_on"] == "last epoch"
    assert result.test_best == result.test_last
    # A plateau is one of the training loss then.
    assert seen == [[], [pytest.approx(float(history(result.folder.history)[0]["train_loss"]))]]


def test_two_overlaid_digits_are_scored_as_a_set(small_config, silent, fake_mnist):
    result = train(
        small_config(
            model="capsnet_multimnist", data="multimnist", data_root=str(fake_mnist), epochs=1, limit=32,
            model_args={"conv_channels": 4, "primary_types": 1}, batch_size=16,
        ),
        silent,
    )  # fmt: skip
    scores = result.results["test_best"]
    assert scores["accuracy"] <= scores["mean_hits"] <= scores["any_hit"]
    assert result.folder.test_samples.exists()


@pytest.fixture
def fake_mnist(tmp_path):
    """A root with an MNIST of a few random images, as its files lie on disk."""
    generator = torch.Generator().manual_seed(0)
    raw = tmp_path / "root" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 80), ("t10k", 20)):
        images = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8).numpy()
        labels = (torch.arange(count) % 10).to(torch.uint8).numpy()
        header = (2051).to_bytes(4, "big") + count.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = (2049).to_bytes(4, "big") + count.to_bytes(4, "big")
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return tmp_path / "root"


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "lr": 0.05}, {"clip_norm": 0.1}, {"precision": "bf16"}, {"channels_last": False},
        {"schedule": "exponential"}, {"loss": "cross_entropy"},
        {"model_args": {"channels": [4, 8, 8], "routing": "dynamic"}},
        {"img_size": 20, "in_chans": 3, "model_args": {"channels": [4, 8, 8], "patch_size": 2}},
        {"data": "folder"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_must_work(small_config, silent, tmp_path, changes):
    if changes.get("data") == "folder":
        changes = {"data": str(image_folder(tmp_path)), "batch_size": 4}
    result = train(small_config(epochs=1, **changes), silent)
    assert all(torch.isfinite(t).all() for t in weights_of(result.folder).values())


def test_the_test_images_are_evaluated_in_single_precision_whatever_the_training(small_config, silent):
    config = small_config(epochs=1, precision="bf16", loss="margin")
    result = train(config, silent)
    setup = prepare(config)
    loss = setup.plan.task().objective(result.model, config).loss
    exact = evaluate(result.model, setup.splits.test, loss=loss)
    assert result.test_best.loss == pytest.approx(exact.loss, rel=1e-6)
    with arithmetic("bf16", torch.device("cpu")):
        rounded = evaluate(result.model, setup.splits.test, loss=loss)
    assert rounded.loss != pytest.approx(exact.loss, rel=1e-6)


def image_folder(tmp_path):
    """Sixteen colour images of two classes in folders."""
    from PIL import Image

    for split, count in (("train", 12), ("test", 4)):
        for index in range(count):
            path = tmp_path / "photos" / split / ("red" if index % 2 else "blue") / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 24), (200, 10, index) if index % 2 else (10, index, 200)).save(path)
    return tmp_path / "photos"


def test_the_order_of_an_epoch_is_a_permutation_that_changes():
    first, second = epoch_order(0, 0, 50), epoch_order(0, 1, 50)
    assert first.sort().values.tolist() == list(range(50))
    assert not torch.equal(first, second)
    assert torch.equal(first, epoch_order(0, 0, 50))


def test_wrong_devices_say_what_there_is():
    with pytest.raises(UsageError, match="cpu"):
        choose_device("cuda:99")
    with pytest.raises(UsageError, match="must be auto"):
        choose_device("gpu")


def test_a_batch_larger_than_the_data_becomes_the_data(small_config, silent):
    result = train(small_config(batch_size=4096, epochs=1), silent)
    assert result.results["train_images"] == 96


def test_added_losses_are_columns_of_the_history(small_config, silent):
    network = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 4, "shared": 1, "active": 1}
    losses = {}
    for weight in (0.0, 0.5):
        config = small_config(
            model="moh_vit_cifar", model_args=network, loss_weights={"balance": weight}, epochs=1, name=f"w{weight}"
        )
        (row,) = history(train(config, silent).folder.history)
        losses[weight] = float(row["train_balance"]), float(row["train_loss"])
    # Of three routed heads one is active: the balance is 1 where all are used alike.
    assert losses[0.0][0] == 0 and 0.5 <= losses[0.5][0] < 0.6
    assert losses[0.5][1] - losses[0.0][1] == pytest.approx(losses[0.5][0], rel=0.1)
    with pytest.raises(UsageError, match="diversity"):
        train(small_config(model="moh_vit_cifar", model_args=network, loss_weights={"diversity": 1.0}), silent)
