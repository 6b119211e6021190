"""The settings that follow from the data: a pure function of facts, and of the time of an image."""

import io
import math
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from mereo.cli.main import main
from mereo.cli.train import given_options
from mereo.data import dataset_info
from mereo.errors import UsageError
from mereo.training.backend import has_bfloat16
from mereo.training.choice import EPOCHS, Choice, batch_for, choose, default_minutes, epoch_seconds, rate_for
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.defaults import Defaults, choose_defaults, show_defaults
from mereo.training.facts import GREY, PHOTOGRAPHS, TEXT, DataFacts, data_facts, kind_of_images, lost_detail
from mereo.training.rising import gain_at_the_end

CHOSEN = {"batch_size", "lr", "epochs", "minutes", "precision", "img_size", "warmup_epochs", "augment"}
FINE = {32: 0.4, 48: 0.25, 64: 0.1}


def facts(images=1440, **changes):
    known = {"num_classes": 10, "classes": {f"kind {i}": images // 10 + 2 for i in range(10)}, "kind": PHOTOGRAPHS}
    known |= {"smallest": (100, 100), "largest": (100, 100), "lost": {32: 0.05, 48: 0.03, 64: 0.02}}
    return DataFacts(images, **{**known, **changes})


def chosen(about, seconds=1e-3, given=(), half=1.0, **config):
    """The choice where an image of 32 pixels takes these seconds, and this fraction of them in bfloat16."""

    def measure(side, precision):
        return seconds * (half if precision == "bf16" else 1.0) * ((side or 32) / 32) ** 2

    return choose(TrainConfig(**config), {*given, *config}, about, 32, None if seconds is None else measure)


def test_every_setting_has_a_value_and_a_reason():
    choice = chosen(facts())
    assert set(choice.values) == set(choice.reasons) == CHOSEN and all(choice.reasons.values())
    assert choice.values["batch_size"] == 32 and choice.values["lr"] == 3e-3 and choice.values["minutes"] == 1.5
    assert choice.values["augment"] == ("crop=4", "flip") and choice.values["img_size"] == 32
    TrainConfig().replace(**choice.values).check()


IMAGES, MINUTES, EACH = st.integers(1, 10**7), st.floats(1e-3, 1e5), st.floats(1e-7, 1e3)


@given(IMAGES, EACH, MINUTES, st.floats(1, 100), st.sampled_from([{}, FINE]))
def test_more_time_gives_larger_images_or_more_epochs_and_never_fewer_of_both(images, each, minutes, more, lost):
    less, then = (chosen(facts(images, lost=lost), each, minutes=m).values for m in (minutes, min(minutes * more, 1e5)))
    assert less["img_size"] <= then["img_size"]
    if less["img_size"] == then["img_size"]:
        assert less["epochs"] <= then["epochs"]


@given(IMAGES, EACH, MINUTES)
def test_the_expected_time_fits_unless_one_epoch_takes_longer(images, each, minutes):
    choice = chosen(facts(images), each, minutes=minutes)
    one = epoch_seconds(each, images, 0.1)
    assert choice.seconds == pytest.approx(choice.values["epochs"] * one)
    assert choice.seconds <= 60 * minutes * (1 + 1e-9) or choice.values["epochs"] == 1


@given(IMAGES, st.integers(1, 64))
def test_the_batch_is_bounded_by_the_number_of_images(images, parts):
    assert 1 <= batch_for(images) <= min(images, 128) and batch_for(images) <= batch_for(2 * images)
    assert batch_for(images, parts) % parts == 0
    if images >= 32:
        assert images // batch_for(images) >= 4


OPEN = sorted(CHOSEN - {"minutes"})
VALUES = {
    "batch_size": 7,
    "lr": 0.1,
    "precision": "bf16",
    "epochs": 3,
    "img_size": 40,
    "warmup_epochs": 0.0,
    "augment": ("flip",),
}


@given(st.sets(st.sampled_from(OPEN)), IMAGES, st.sampled_from([PHOTOGRAPHS, GREY, TEXT, None]))
def test_what_is_given_is_kept(names, images, kind):
    config = {name: VALUES[name] for name in names}
    choice = chosen(facts(images, kind=kind), **config)
    assert not names & choice.values.keys()
    assert ("epochs" in names) == ("minutes" not in choice.values)


@given(st.sampled_from([PHOTOGRAPHS, GREY, TEXT]), st.sampled_from(["0123456789", ("left", "right"), ("cat", "dog")]))
def test_text_signs_and_directions_are_never_mirrored(kind, names):
    augment = chosen(facts(classes=dict.fromkeys(names, 9), kind=kind)).values["augment"]
    assert ("flip" in augment) == (kind != TEXT and "cat" in names)
    if kind == TEXT:
        assert not any(text.startswith(("crop", "shift", "rotate")) for text in augment)


def test_images_grow_for_fine_detail_where_time_allows_and_never_beyond_their_own_size():
    assert chosen(facts(lost=FINE), 5e-4).values["img_size"] == 64
    assert chosen(facts(lost=FINE), 1e-2).values["img_size"] == 32
    assert chosen(facts(lost=FINE, largest=(28, 28)), 1e-6).values["img_size"] == 32
    assert chosen(facts(lost=FINE | {48: 0.1}), 8e-4).values["img_size"] == 48
    assert chosen(facts(lost=FINE), 5e-4).values["augment"] == chosen(facts(), img_size=64).values["augment"]


def test_by_default_a_slow_network_gets_more_time_rather_than_too_few_epochs():
    assert chosen(facts(), 1.0).values["epochs"] == 10
    assert chosen(facts(), 1.0, minutes=1.0).values["epochs"] == 1
    assert chosen(facts(), 1e-9).values["epochs"] <= EPOCHS[-1]


def test_the_expected_time_is_printed_before_a_training_only(capsys):
    choice = chosen(facts(), 10.0, minutes=0.1)
    assert choice.values["epochs"] == 1 and "one epoch takes longer" in choice.reasons["epochs"]
    defaults = Defaults(TrainConfig(), None, facts(), choice)
    show_defaults(defaults)
    assert "expected time" in capsys.readouterr().out
    show_defaults(defaults, timed=False)
    printed = capsys.readouterr().out
    assert "--epochs 1" in printed and "expected time" not in printed


def test_epochs_that_are_given_need_no_measured_time():
    def never(side, precision):
        raise AssertionError

    values = choose(TrainConfig(epochs=2), {"epochs"}, facts(), 32, never).values
    assert set(values) == CHOSEN - {"epochs", "minutes", "precision"}


def test_rates_follow_the_network_the_batch_and_the_weights():
    assert rate_for(TrainConfig(), 32) == 3e-3 and rate_for(TrainConfig(), 128) == 2e-3
    assert rate_for(TrainConfig(), 8) == 1.5e-3
    assert rate_for(TrainConfig(model="cait_xxs24_224"), 32) == 1e-3
    assert rate_for(TrainConfig(model="resnet20"), 32, batch_norm=True) == 7e-3
    assert rate_for(TrainConfig(weights="run"), 32) == 1e-3
    assert rate_for(TrainConfig(optimizer="sgd", lr=0.1), 32) == 0.1


@pytest.mark.parametrize(("model", "expected"), [("resnet20", 7e-3), ("capsnet", 1e-3), ("timm:resnet10t", 7e-3)])
def test_networks_that_normalise_by_the_batch_only_have_a_higher_rate(model, expected):
    config = TrainConfig(model=model, data="digits", epochs=2, batch_size=32)
    assert choose_defaults(config, {"model", "data", "epochs", "batch_size"}).config.lr == expected


def test_bfloat16_is_chosen_where_it_is_clearly_faster():
    slow, fast = chosen(facts(), 3e-3), chosen(facts(), 3e-3, half=0.5)
    assert slow.values["precision"] == "fp32" and fast.values["precision"] == "bf16"
    assert fast.reasons["precision"] == "bf16 is 2.0 times as fast as fp32 on this machine"
    assert fast.values["epochs"] > 1.5 * slow.values["epochs"]
    assert "precision" not in chosen(facts(), 3e-3, half=0.5, precision="fp32").values
    assert chosen(facts(), 3e-3, half=0.5, precision="bf16").values["epochs"] == fast.values["epochs"]


@pytest.mark.parametrize(("kind", "there"), [("cpu", True), ("cuda", True), ("cuda", False), ("mps", False)])
def test_bfloat16_is_not_tried_where_the_device_has_none(monkeypatch, kind, there):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: there)
    assert has_bfloat16(torch.device(kind)) == there
    tried = []

    def measure(side, precision):
        tried.append(precision)
        return 1e-3

    choice = choose(TrainConfig(), set(), facts(), 32, measure, bfloat16=there)
    assert ("bf16" in tried) == there == ("precision" in choice.values)


def test_minutes_grow_with_the_images_between_bounds():
    assert default_minutes(1) == default_minutes(2500) == 1.5 and default_minutes(10**9) == 20
    assert default_minutes(5000) == 3


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf, 1e9])
def test_minutes_must_be_a_time(minutes):
    with pytest.raises(UsageError, match="minutes is"):
        TrainConfig(minutes=minutes).check()


def test_options_are_known_in_every_form():
    words = ["--batch-size", "3", "--lr=0.1", "--no-tensorboard", "--model_args", "a=1", "x.yaml"]
    assert given_options(words) == {"batch_size", "lr", "tensorboard", "model_args"} <= FIELDS.keys()


def noise(seed, shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def page(seed):
    image = Image.new("L", (64, 64), 250)
    ImageDraw.Draw(image).line([(10, 10 + seed), (50, 50)], fill=10, width=3)
    return np.asarray(image.convert("RGB"))


def test_kinds_of_images():
    grey = noise(0, (64, 64, 1)).repeat(3, axis=2)
    assert kind_of_images([noise(i, (64, 64, 3)) for i in range(3)]) == PHOTOGRAPHS
    assert kind_of_images([grey]) == GREY
    assert kind_of_images([page(i) for i in range(3)]) == TEXT


def test_detail_that_is_lost():
    smooth = np.tile(np.linspace(0, 255, 128).astype(np.uint8), (128, 1))
    assert lost_detail(smooth, 32) < 0.01 and lost_detail(noise(0, (128, 128)), 32) > 0.8
    assert lost_detail(np.full((128, 128), 9, np.uint8), 32) == 0


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


def test_facts_of_a_folder(tmp_path):
    info = dataset_info(folder(tmp_path / "photos", 3, 5, colours))
    about = data_facts(info, 12)
    assert about.classes == {"kind0": 5, "kind1": 5, "kind2": 5} and about.kind == PHOTOGRAPHS
    assert about.smallest == about.largest == (20, 24) and about.images == 12
    # Fewer than the classes count, because some are held out or a limit is given; or all.
    for images, first in ((12, "photos: 3 classes, 12 of 15 images to train on"), (15, "photos: 3 classes, 15 images")):
        config = TrainConfig(data="photos")
        lines = Defaults(config, info, data_facts(info, images), Choice({}, {})).lines()
        assert lines[0].startswith(first) and lines[1] == "  kind0 5, kind1 5, kind2 5"
    (tmp_path / "photos" / "kind0" / "0.png").write_text("no image")
    assert data_facts(info, 12).kind == PHOTOGRAPHS


def test_flips_and_black_borders_on_text_are_pointed_out():
    about = facts(kind=TEXT)
    config = TrainConfig(augment=("flip", "rotate=20", "crop=2"))
    flip, black = Defaults(config, None, about, Choice({}, {})).lines()[-2:]
    assert flip.startswith("flip mirrors") and black.startswith("crop and rotate put black borders")
    for other, kind in ((("zoom=0.75:1",), TEXT), (("flip", "crop=4"), PHOTOGRAPHS)):
        lines = Defaults(TrainConfig(augment=other), None, facts(kind=kind), Choice({}, {})).lines()
        assert not any("flip" in line or "border" in line for line in lines)


def test_very_large_images_are_sampled_sparingly(tmp_path):
    info = dataset_info(folder(tmp_path / "photos", 2, 2, lambda c, n: Image.new("RGB", (4000, 4000), (90 * c, 5, 9))))
    about = data_facts(info, 4)
    assert about.largest == (4000, 4000) and about.kind == PHOTOGRAPHS


@pytest.mark.parametrize(("classes", "count"), [(2, 5), (200, 2), (5, 3)])
def test_odd_folders_get_settings_that_can_be_trained(tmp_path, classes, count, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    data = str(folder(tmp_path / "photos", classes, count, colours))
    defaults = choose_defaults(TrainConfig(data=data, model_args={"channels": [4, 8, 8]}), {"data", "model_args"})
    assert defaults.config.batch_size <= max(classes * count, 1) and defaults.config.epochs >= 1
    defaults.config.check()
    text = "\n".join(defaults.lines())
    assert f"{classes} classes" in text and "--epochs" in text and "kind0" in text


@pytest.mark.parametrize(("classes", "count"), [(1, 1), (1, 5), (2, 1)])
def test_too_few_images_are_refused(tmp_path, classes, count, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "photos", classes, count, colours)
    assert main(["train", "--data", "photos"]) == 2
    assert "mereo: error" in capsys.readouterr().err


def test_several_processes_choose_what_one_chooses_but_for_what_follows_from_time(monkeypatch):
    given = {"epochs"}
    alone = choose_defaults(TrainConfig(), given).config
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert choose_defaults(TrainConfig(), given).config == alone != TrainConfig()
    assert choose_defaults(TrainConfig(), ()).config == alone
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert choose_defaults(TrainConfig(), ()).config.batch_size % 3 == 0
    with pytest.raises(UsageError, match="minutes is 2 with 3 processes"):
        choose_defaults(TrainConfig(minutes=2.0), {"minutes"})


def test_what_still_rises():
    assert gain_at_the_end([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9]) is not None
    assert gain_at_the_end([0.1, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]) is None
    assert gain_at_the_end([0.9, 0.95, 0.97, 0.98, 0.992, 0.993, 0.995, 0.996, 0.999, 1.0]) is None
    assert gain_at_the_end([0.1, 0.9]) is None and gain_at_the_end([]) is None


@pytest.mark.slow
def test_a_folder_is_learned_with_no_option_and_the_run_repeats_from_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mereo.training.choice.LEAST_MINUTES", 0.05)
    folder(tmp_path / "photos", 3, 40, colours)
    assert main(["train", "--data", "photos", "--no-tensorboard"]) == 0
    out = capsys.readouterr().out
    assert "--batch-size" in out and "expected time" in out
    saved = TrainConfig.from_yaml(tmp_path / "runs/mspcaps_tiny-photos/config.yaml")
    assert saved.minutes == 0.05 and saved.batch_size == 16 and saved.augment == ("crop=4", "flip")
    accuracy = float(out.partition("test accuracy")[2].split()[0])
    assert accuracy >= 95
    assert main(["train", "runs/mspcaps_tiny-photos", "--no-tensorboard"]) == 0
    again = TrainConfig.from_yaml(tmp_path / "runs/mspcaps_tiny-photos-2/config.yaml")
    assert again.replace(tensorboard=saved.tensorboard) == saved
    first, second = (
        (tmp_path / f"runs/mspcaps_tiny-photos{name}/results.csv").read_text().splitlines()[-1] for name in ("", "-2")
    )
    assert first.split(",")[:6] == second.split(",")[:6]


def test_facts_of_a_tar_file_are_those_of_its_images(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "pages.tar", "w") as archive:
        for number in range(12):
            file = io.BytesIO()
            Image.fromarray(page(number)).save(file, format="PNG")
            for kind, content in (("png", file.getvalue()), ("cls", b"left" if number % 3 else b"right")):
                member = tarfile.TarInfo(f"{number:03d}.{kind}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    with pytest.warns(UserWarning, match="set aside"):
        info = dataset_info(tmp_path / "pages.tar")
    about = data_facts(info, 9)
    assert about.kind == TEXT and sum(about.classes.values()) == info.splits["train"] and set(about.classes) == {
        "left", "right"
    }  # fmt: skip
    assert about.largest == page(0).shape[:2] and about.lost
    assert chosen(about).values["augment"] == ("zoom=0.75:1",), "text is not mirrored"
