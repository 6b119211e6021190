"""The settings that follow from the task, the network, the data and the time of an image."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mereo
from mereo.cli.main import main
from mereo.cli.train import given_options
from mereo.data import DATASETS
from mereo.data.facts import COLOUR, TEXT, DataFacts
from mereo.errors import UsageError
from mereo.models import get_model_entry
from mereo.tasks import Segmentation
from mereo.tasks.base import TASKS, get_task, task_for
from mereo.training.automatic import (
    LEAST_EPOCHS,
    MINUTES,
    TESTS,
    Automatic,
    Chooser,
    batch_for,
    choose,
    epochs_of,
    implied_task,
    rate_for,
    sides_for,
)
from mereo.training.backend import has_bfloat16
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.results import gain_at_the_end
from mereo.training.schedule import EVALUATION

IMAGES, TIMES, EACH = st.integers(1, 10**7), st.floats(1e-3, 1e5), st.floats(1e-7, 1e3)


def facts(images=1440, **changes):
    known = {"num_classes": 10, "classes": {f"kind {i}": images // 10 + 2 for i in range(10)}, "kind": COLOUR}
    return DataFacts(images, **{**known, "largest": 100, **changes})


def chosen(about, seconds=1e-3, own=32, clock=True, half=1.0, **config):
    """The choice of a size and of epochs where an image of 32 pixels takes these seconds, in bfloat16 a part of it."""

    def measure(side, precision):
        return seconds * (half if precision == "bf16" else 1.0) * (side / 32) ** 2

    chooser = Chooser(TrainConfig(batch_size=32, **config), {*config}, about)
    chooser.arithmetic(own, measure)
    expected = chooser.length(sides_for(own, about.largest), own, max(about.images // 32, 1), measure, clock)
    assert all(chooser.reasons.values())
    return chooser, expected


@given(IMAGES, EACH, TIMES, st.floats(1, 100))
def test_more_time_gives_larger_images_or_more_epochs_and_never_fewer_of_both(images, each, minutes, more):
    less, then = (
        chosen(facts(images), each, clock=False, minutes=m)[0].config for m in (minutes, min(minutes * more, 1e5))
    )
    assert less.img_size <= then.img_size
    if less.img_size == then.img_size:
        assert less.epochs <= then.epochs


@given(IMAGES, EACH, TIMES)
def test_the_expected_time_fits_unless_one_epoch_takes_longer(images, each, minutes):
    chooser, expected = chosen(facts(images), each, clock=False, minutes=minutes)
    assert chooser.config.minutes is None, "the number of epochs is fixed"
    assert expected <= 60 * minutes * (1 + 1e-9) or chooser.config.epochs == 1
    clocked, expected = chosen(facts(images), each, minutes=minutes)
    assert expected == 60 * minutes and clocked.config.minutes == minutes
    assert clocked.config.epochs >= chooser.config.epochs


@given(IMAGES, st.integers(1, 64))
def test_the_batch_is_bounded_by_the_number_of_images(images, parts):
    assert 1 <= batch_for(images) <= min(images, 128) and batch_for(images) <= batch_for(2 * images)
    assert batch_for(images, parts) % parts == 0
    if images >= 32:
        assert images // batch_for(images) >= 4


@pytest.mark.parametrize(("images", "batch"), [(1440, 32), (12_000, 32), (40_000, 64), (60_000, 128)])
def test_large_data_sets_get_larger_batches(images, batch):
    assert batch_for(images) == batch


@pytest.mark.parametrize(("minutes", "chosen_side", "timed"), [(5.0, 64, {64, 96}), (60.0, 256, {64, 256, 384})])
def test_images_of_masks_may_be_much_larger_but_are_not_timed_in_vain(minutes, chosen_side, timed):
    sides, seen = sides_for(64, 1000, Segmentation.larger_sides), set()
    assert sides == [512, 384, 256, 192, 128, 96, 64]

    def measure(side, precision):
        seen.add(side)
        return 0.004 * (side / 64) ** 2

    chooser = Chooser(TrainConfig(batch_size=16, minutes=minutes), {"minutes"}, facts(1000, largest=1000))
    chooser.length(sides, 64, 62, measure, clock=False)
    assert chooser.config.img_size == chosen_side and seen == timed


def test_images_grow_where_time_allows_and_shrink_until_fifteen_epochs_fit():
    assert sides_for(32, 100) == [64, 48, 32] and sides_for(32, 50) == [48, 32] and sides_for(32, None) == [32]
    assert sides_for(224, None) == [224, 160, 96, 64]
    assert sides_for(224, 100) == [96, 64] and sides_for(224, 28) == [64]
    # Images are not enlarged beyond what the masks need, and a network of large images keeps its size.
    assert sides_for(32, 100, finest=48) == [48, 32] and sides_for(32, 100, finest=24) == [32]
    assert sides_for(224, 500, finest=64) == sides_for(224, 500)
    sizes = [chosen(facts(), each)[0].config.img_size for each in (1e-5, 8e-4, 1e-2)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 64 and sizes[-1] == 32
    about = facts(largest=400)
    sizes = [chosen(about, each, own=224, minutes=2.0)[0].config.img_size for each in (1e-6, 1e-4, 2e-4, 1e-2)]
    assert sizes == sorted(sizes, reverse=True) and (sizes[0], sizes[-1]) == (224, 64)
    for each in (1e-6, 1e-4, 1e-2, 1.0):
        chooser, _ = chosen(about, each, own=224, minutes=2.0)
        side = chooser.config.img_size
        fitting = epochs_of(chooser.config, about, each * (side / 32) ** 2, 2.0)
        assert fitting >= LEAST_EPOCHS or (side == 64 and f"{LEAST_EPOCHS} are better" in chooser.reasons["epochs"])


def test_by_default_a_slow_network_gets_more_time_rather_than_too_few_epochs():
    slow, expected = chosen(facts(), 1.0)
    assert slow.config.epochs == LEAST_EPOCHS and expected > 60 * MINUTES
    assert chosen(facts(), 1.0, clock=False, minutes=1.0)[0].config.epochs == 1
    assert chosen(facts(), 1e-9)[0].config.epochs < 100 and chosen(facts(), 1e-9)[0].config.minutes is None


def test_a_part_of_the_images_is_read_and_tested_where_all_would_take_the_time():
    about = facts(12_000, largest=200)

    def bounded(reading, each=1e-3, **config):
        chooser = Chooser(TrainConfig(minutes=1.0, **config), {"minutes", *config}, about, 3000, reading)
        chooser.read_in_time()
        expected = chooser.length([32], 32, 300, lambda side, precision: each, True)
        assert expected == 60
        return chooser

    free = bounded(1e-5)
    assert {"limit", "test_limit"}.isdisjoint(free.reasons)
    slow = bounded(4e-3)
    # Twelve seconds, a fifth of the time, for these images and a tenth of them to choose the epoch by.
    assert slow.config.limit == pytest.approx(2700, abs=1) and "53 s" in slow.reasons["limit"]
    assert slow.config.test_limit == int(12 / (4e-3 + TESTS * EVALUATION * 1e-3)) < 3000
    assert bounded(10.0).config.limit == 50 and bounded(10.0).config.test_limit == 300
    # Less time is left for the training.
    reasons = (bounded(reading, 1e-4).reasons["epochs"] for reading in (1e-5, 8e-4))
    more, fewer = (int(reason.split("about ")[1].split(",")[0]) for reason in reasons)
    assert more > fewer
    given = bounded(4e-3, limit=9000, test_limit=2000)
    assert {"limit", "test_limit"}.isdisjoint(given.reasons) and given.config.limit == 9000


def test_rates_follow_the_network_the_batch_and_the_weights():
    assert rate_for(TrainConfig(), 3e-3, 32) == rate_for(TrainConfig(), 3e-3, 128) == 3e-3
    assert rate_for(TrainConfig(), 3e-3, 8) == 1.5e-3
    assert rate_for(TrainConfig(weights="run"), 3e-3, 32) == 1e-3
    assert rate_for(TrainConfig(optimizer="sgd", lr=0.1), 3e-3, 32) == 0.1


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("mspcaps_tiny", 3e-3),
        ("resnet20", 7e-3),
        ("resnet14_64", 4e-3),
        ("resnet8_64", 3e-3),
        ("cait_xxs24_224", 1e-3),
        ("timm:resnet10t", 2e-3),
    ],
)
def test_every_network_states_its_rate(model, rate):
    assert get_model_entry(model).usual_rate == rate


def test_bfloat16_is_chosen_where_it_is_clearly_faster():
    slow, fast = chosen(facts(), 3e-3, clock=False)[0], chosen(facts(), 3e-3, clock=False, half=0.5)[0]
    assert slow.config.precision == "fp32" and fast.config.precision == "bf16"
    assert "2.0 times as fast" in fast.reasons["precision"] and fast.config.epochs > 1.5 * slow.config.epochs
    kept, _ = chosen(facts(), 3e-3, half=0.5, precision="fp32")
    assert kept.config.precision == "fp32" and "precision" not in kept.reasons


@pytest.mark.parametrize(("kind", "there"), [("cpu", True), ("cuda", True), ("cuda", False), ("mps", False)])
def test_whether_a_device_has_bfloat16(monkeypatch, kind, there):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: there)
    assert has_bfloat16(torch.device(kind)) == there


VALUES = {"batch_size": 7, "lr": 0.1, "precision": "fp32", "epochs": 3, "img_size": 40, "warmup_epochs": 0.0,
          "augment": ("flip",), "model": "mspcaps_tiny"}  # fmt: skip


@pytest.mark.parametrize(
    "names", [(), ("batch_size", "lr"), ("img_size", "augment"), ("precision", "epochs"), [*VALUES]]
)
def test_what_is_given_is_kept(names, tmp_path):
    given = {name: VALUES[name] for name in names} | {"data": str(folder(tmp_path / "photos", 3, 12, colours))}
    automatic = choose(TrainConfig().replace(**given), given)
    assert not {*given} & automatic.reasons.keys()
    assert all(getattr(automatic.config, name) == value for name, value in given.items())
    open_fields = {"batch_size", "lr", "epochs", "precision", "img_size", "warmup_epochs", "augment", "model"} - {
        *given
    }
    assert automatic.reasons.keys() == open_fields - ({"precision"} if "epochs" in given else set())
    automatic.config.check()


def test_images_in_colour_get_the_network_that_the_task_states_for_them(tmp_path):
    data = str(folder(tmp_path / "photos", 3, 12, colours))
    colour = TASKS["classification"].colour_model
    fixed = {"data": data, "epochs": 1}
    assert choose(TrainConfig(data=data, epochs=1), fixed).config.model == colour
    assert choose(TrainConfig(epochs=1), {"epochs"}).config.model == TASKS["classification"].example_model
    for name, value in (("model", "mspcaps_tiny"), ("model_args", {"channels": [4, 8, 8]})):
        config = TrainConfig(data=data, epochs=1).replace(**{name: value})
        assert choose(config, {*fixed, name}).config.model == "mspcaps_tiny"


def test_few_images_of_few_identities_choose_no_epoch(tmp_path, monkeypatch):
    faces = folder(tmp_path / "faces", 4, 4, colours)
    given = {"task": "embedding", "data": str(faces), "epochs": 1}
    config = choose(TrainConfig(**given), given).config
    assert config.model == TASKS["embedding"].example_model and config.validation_fraction == 0
    for file in faces.rglob("*.png"):
        with Image.open(file) as image:
            image.convert("L").resize((70, 80)).save(file)
    assert choose(TrainConfig(**given), given).config.model == TASKS["embedding"].large_model
    kept = {**given, "validation_fraction": 0.2}
    assert choose(TrainConfig(**kept), kept).config.validation_fraction == 0.2
    monkeypatch.setattr("mereo.training.automatic.IDENTITIES", 0)
    assert choose(TrainConfig(**given), given).config.validation_fraction == TrainConfig.validation_fraction


@pytest.mark.parametrize("task", [*TASKS])
def test_every_task_gets_settings(task):
    """What a task states is kept, and the rest is chosen as for any other."""
    kind = TASKS[task]
    automatic = choose(TrainConfig(task=task, epochs=2), {"task", "epochs"})
    assert automatic.config.model == kind.example_model and automatic.config.data == kind.example_data
    stated = {**kind.settings, **kind.example_settings, "epochs": 2}
    assert all(getattr(automatic.config, name) == value for name, value in stated.items())
    assert {"lr", "warmup_epochs"} - stated.keys() <= automatic.reasons.keys() and automatic.lines()
    assert automatic.plan().task is kind


OTHER = sorted(name for name, info in DATASETS.items() if "images" not in info.fields and not info.files)


@pytest.mark.parametrize("data", OTHER)
def test_data_other_than_images_chooses_its_task_and_a_network(data):
    given = {"data": data, "epochs": 1, "limit": 64}
    automatic = choose(TrainConfig(**given), given)
    task = get_task(automatic.config.task)
    assert {*task.requires} <= {*DATASETS[data].fields} and automatic.config.model == task.example_model
    assert data not in {each.example_data for each in TASKS.values()} or task.example_data == data
    assert automatic.plan().task is task
    with pytest.raises(UsageError, match=r"images are needed; give other data such as .* or a network that reads"):
        choose(TrainConfig(**given, task="classification"), {**given, "task": "classification"})


def test_a_file_of_text_chooses_a_network_of_language(tmp_path):
    (tmp_path / "notes.txt").write_text(" ".join(map(str, range(3000))))
    given = {"data": str(tmp_path / "notes.txt"), "epochs": 1}
    config = choose(TrainConfig(**given), given).config
    assert (config.task, config.model) == ("language", TASKS["language"].example_model)


@pytest.mark.parametrize(("sizes", "sampler"), [((40, 4), "balanced"), ((12, 9), "shuffle")])
def test_classes_of_very_different_sizes_are_balanced_and_few_images_pointed_out(tmp_path, sizes, sampler):
    for name, count in zip(("crow", "wren"), sizes, strict=True):
        (tmp_path / "birds" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("L", (8, 8), number).save(tmp_path / "birds" / name / f"{number}.png")
    given = {"data": str(tmp_path / "birds"), "epochs": 1}
    automatic = choose(TrainConfig(**given), given)
    assert automatic.config.sampler == sampler
    assert any("too few" in line and "wren" in line for line in automatic.lines()) == (min(sizes) < 5)
    kept = choose(TrainConfig(**given, sampler="shuffle"), {**given, "sampler": "shuffle"})
    assert kept.config.sampler == "shuffle"


def test_the_task_follows_from_images_with_masks_unless_it_is_given(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for number in range(8):
            Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / kind / f"{number}.png")
    given = {"data": str(tmp_path), "epochs": 1}
    config = choose(TrainConfig(**given), given).config
    assert (config.task, config.model) == ("segmentation", TASKS["segmentation"].example_model)
    with pytest.raises(UsageError, match="needs labels"):
        choose(TrainConfig(**given), {**given, "task": "classification"})


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf, 1e9])
def test_minutes_must_be_a_time(minutes):
    with pytest.raises(UsageError, match="minutes is"):
        TrainConfig(minutes=minutes).check()


def test_options_are_known_in_every_form():
    words = ["--batch-size", "3", "--lr=0.1", "--no-tensorboard", "--model_args", "a=1", "x.yaml"]
    assert given_options(words) == {"batch_size", "lr", "tensorboard", "model_args"} <= FIELDS.keys()


def test_the_lines_name_classes_settings_and_the_time():
    classes = {"kind0": 5, "kind1": 5, "kind2": 5}
    # Fewer than the classes count, because some are held out or a limit is given; or all.
    for images, first in ((12, "photos: 3 classes, 12 of 15 images to train on"), (15, "photos: 3 classes, 15 images")):
        about = facts(images, num_classes=3, classes=classes)
        automatic = Automatic(TrainConfig(data="photos", epochs=7), None, about, {"epochs": "why"}, 60.0)
        lines = automatic.lines()
        assert lines[0].startswith(first) and lines[1] == "  kind0 5, kind1 5, kind2 5"
        assert lines[3].split() == ["--epochs", "7", "why"] and "expected time" in lines[4]
        assert not any("expected time" in line for line in automatic.lines(timed=False))


def test_flips_and_black_borders_on_text_are_pointed_out():
    config = TrainConfig(augment=("flip", "rotate=20", "crop=2"))
    flip, black = Automatic(config, None, facts(kind=TEXT)).lines()[-2:]
    assert flip.startswith("flip mirrors") and black.startswith("crop and rotate put black borders")
    for other, kind in ((("zoom=0.75:1",), TEXT), (("flip", "crop=4"), COLOUR)):
        lines = Automatic(TrainConfig(augment=other), None, facts(kind=kind)).lines()
        assert not any("flip" in line or "border" in line for line in lines)


def folder(path, classes, count, draw):
    for label in range(classes):
        (path / f"kind{label}").mkdir(parents=True)
        for number in range(count):
            draw(label, number).save(path / f"kind{label}" / f"{number}.png")
    return path


def colours(label, number):
    generator = np.random.default_rng(1000 * label + number)
    shade = np.array([[230, 60, 40], [40, 200, 60], [60, 80, 230]])[label % 3]
    return Image.fromarray(np.clip(shade + generator.normal(0, 40, (20, 24, 3)), 0, 255).astype(np.uint8))


@pytest.mark.parametrize(("classes", "count"), [(2, 5), (200, 2), (5, 3)])
def test_odd_folders_get_settings_that_can_be_trained(tmp_path, classes, count, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    data = str(folder(tmp_path / "photos", classes, count, colours))
    automatic = choose(TrainConfig(data=data, model_args={"channels": [4, 8, 8]}), {"data", "model_args"})
    assert automatic.config.batch_size <= max(classes * count, 1) and automatic.config.epochs >= 1
    automatic.config.check()
    text = "\n".join(automatic.lines())
    assert f"{classes} classes" in text and "--epochs" in text and "kind0" in text


@pytest.mark.parametrize(("classes", "count"), [(1, 1), (1, 5), (2, 1)])
def test_too_few_images_are_refused(tmp_path, classes, count, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "photos", classes, count, colours)
    assert main(["train", "--data", "photos"]) == 2
    assert "mereo: error" in capsys.readouterr().err


def test_several_processes_choose_what_one_chooses_but_for_what_follows_from_time(monkeypatch):
    given = {"epochs"}
    alone = choose(TrainConfig(), given).config
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert choose(TrainConfig(), given).config == alone != TrainConfig()
    assert choose(TrainConfig(), ()).config == alone
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert choose(TrainConfig(), ()).config.batch_size % 3 == 0
    with pytest.raises(UsageError, match="minutes is 2 with 3 processes"):
        choose(TrainConfig(minutes=2.0), {"minutes"})


def test_what_still_rises():
    assert gain_at_the_end([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9]) is not None
    assert gain_at_the_end([0.1, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]) is None
    assert gain_at_the_end([0.9, 0.95, 0.97, 0.98, 0.992, 0.993, 0.995, 0.996, 0.999, 1.0]) is None
    assert gain_at_the_end([0.1, 0.9]) is None and gain_at_the_end([]) is None


@pytest.mark.long
def test_a_folder_is_learned_with_no_option_and_the_run_repeats_from_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mereo.training.automatic.MINUTES", 0.05)
    folder(tmp_path / "photos", 3, 40, colours)
    assert main(["train", "--data", "photos", "--no-tensorboard"]) == 0
    out = capsys.readouterr().out
    assert "--batch-size" in out and "expected time" in out
    saved = TrainConfig.from_yaml(tmp_path / "runs/resnet14_64-photos/config.yaml")
    assert saved.minutes is None and saved.batch_size == 16 and saved.augment == ("zoom=0.5:1", "flip")
    accuracy = float(out.partition("test accuracy")[2].split()[0])
    assert accuracy >= 95
    assert main(["train", "runs/resnet14_64-photos", "--no-tensorboard"]) == 0
    again = TrainConfig.from_yaml(tmp_path / "runs/resnet14_64-photos-2/config.yaml")
    assert again.replace(tensorboard=saved.tensorboard) == saved
    first, second = (
        (tmp_path / f"runs/resnet14_64-photos{name}/results.csv").read_text().splitlines()[-1] for name in ("", "-2")
    )
    assert first.split(",")[:6] == second.split(",")[:6]


@pytest.mark.parametrize("model", ["skeleton_small", "pointer_network_small", "detector_small", "unet_small"])
def test_a_task_that_follows_from_the_network_brings_the_same_settings(model):
    task = task_for(get_model_entry(model).module, TrainConfig.task)
    for data in ({}, {"data": task.example_data}):
        given = {"model": model, "epochs": 1, "lr": 0.5, **data}
        inferred, named = (
            choose(TrainConfig().replace(**options), options) for options in (given, {**given, "task": task.name})
        )
        assert inferred.config == named.config and set(inferred.stated) == set(named.stated)
        assert (inferred.config.task, inferred.config.data) == (task.name, task.example_data)
        assert inferred.config.batch_size == task.settings["batch_size"] and inferred.config.lr == 0.5
        assert data or task.example_settings.get("img_size") == inferred.config.img_size


def test_a_task_without_its_fields_is_refused_in_words(tmp_path):
    for name in ("dark", "light"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    for task, words in (("multilabel", "several labels of an image"), ("regression", "--label-column")):
        with pytest.raises(UsageError, match=words) as refused:
            mereo.train(data=str(tmp_path), task=task, epochs=1)
        assert "multi_hot" not in str(refused.value) and "another --task" in str(refused.value)


def test_networks_are_compared_at_what_the_images_are_for(tmp_path, monkeypatch):
    rows = ["image,age"]
    for number in range(8):
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number + 0.5}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    assert implied_task(str(tmp_path / "table.csv"), None) == "regression"
    assert implied_task("digits", None) is None and implied_task(str(tmp_path / "none.csv"), None) is None

    def stop(texts, seeds, output, overrides, *_, **__):
        raise UsageError(f"task {overrides.get('task')}")

    monkeypatch.setattr("mereo.api.comparison.run_comparison", stop)
    with pytest.raises(UsageError, match="task regression"):
        mereo.compare(["resnet20"], data=tmp_path / "table.csv", quiet=True)
    with pytest.raises(UsageError, match="task None"):
        mereo.compare(["resnet20"], data="digits", quiet=True)
