"""The configuration: round trips, coercion from YAML, wrong values."""

from pathlib import Path

import pytest

from mereo.api.training import configuration
from mereo.cli.train import given
from mereo.errors import UsageError
from mereo.export.record import command_of
from mereo.models import MODELS, is_model
from mereo.training.compare import make_study
from mereo.training.config import TrainConfig
from mereo.training.option_values import show_size
from mereo.training.recipes import RECIPES, apply_recipe, is_recipe, list_recipes
from mereo.training.schedule import learning_rate


def test_yaml_round_trip(tmp_path):
    config = TrainConfig(model="capsnet", model_args={"routing_steps": 1}, mean=(0.5,), std=(0.25,), epochs=3)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert TrainConfig.from_yaml(path) == config


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-4\nmean: [0, 1]\nstd: [1, 1]\nweight_decay: 1\n")
    config = TrainConfig.from_yaml(path)
    assert config.lr == 1e-4
    assert config.mean == (0.0, 1.0)
    assert isinstance(config.weight_decay, float)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("epoch: 3", "did you mean 'epochs'"),
        ("epochs: three", "epochs is 'three'"),
        ("epochs: true", "epochs is True"),
        ("lr: fast", "must be a number"),
        ("mean: [a]", "mean is 'a'"),
        ("img_size: [64, 48, 3]", "such as 64x48"),
        ("img_size: 64x", "such as 64x48"),
        ("img_size: true", "such as 64x48"),
        ("img_size: [64, 0.5]", "such as 64x48"),
        ("- 1", "is not a configuration"),
        ("{", "is not YAML"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, text, match):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=match) as error:
        TrainConfig.from_yaml(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0}, {"batch_size": -1}, {"lr": 0.0}, {"accumulate": 3}, {"validation_fraction": 1.0},
        {"ema_decay": 1.5}, {"mean": (0.5,)}, {"name": "a/b"}, {"seed": -1}, {"weight_decay": -1.0},
        {"std": (0.0,), "mean": (0.5,)}, {"min_lr": float("nan")}, {"mixup": 5e-324}, {"cutmix": 1e-9},
        {"mean": [10**400], "std": [1.0]}, {"decay_rate": 1.5}, {"adversarial": 2.0}, {"patience": 0},
        {"minutes": 1e6}, {"warmup_epochs": 1e7}, {"schedule": "linear"},
    ],
)  # fmt: skip
def test_the_message_names_the_invalid_field(change):
    with pytest.raises(UsageError, match=rf"\b{next(iter(change))}\b"):
        TrainConfig().replace(**change).check()


@pytest.mark.parametrize("size", [0, [float("inf")], [float("nan")]])
def test_a_size_of_images_is_a_positive_number(size):
    with pytest.raises(UsageError, match="such as 64x48"):
        TrainConfig(img_size=size).check()


@pytest.mark.parametrize(
    ("text", "size"),
    [("64", 64), ("64x48", (64, 48)), ("[64, 48]", (64, 48)), ("64x64", 64), ("[32]", 32), ("null", None)],
)
def test_sides_of_images_are_one_number_or_height_and_width(tmp_path, text, size):
    path = tmp_path / "config.yaml"
    path.write_text(f"img_size: {text}\n")
    config = TrainConfig.from_yaml(path)
    assert config.img_size == size
    path.write_text(config.to_yaml())
    assert TrainConfig.from_yaml(path) == config
    if size is not None:
        assert configuration(*given(["--img-size", show_size(size)])).img_size == size


def test_a_file_with_aliases_is_refused(tmp_path):
    lines = ["a0: &a0 [ha]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
    path = tmp_path / "config.yaml"
    path.write_text("model_args:\n" + "\n".join(f"  {line}" for line in lines) + "\nmodel: *a11\n")
    with pytest.raises(UsageError, match="alias"):
        TrainConfig.from_yaml(path)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_configuration_of_a_model_that_exists(name):
    for data in (None, *RECIPES[name].by_data):
        config = apply_recipe(name, data=data)
        config.check()
        assert is_model(config.model)
        assert config.recipe == name


def test_every_model_names_a_recipe_that_exists():
    entries = MODELS.values()
    assert {entry.recipe for entry in entries} - {None} <= set(RECIPES)


def test_recipes_hold_what_the_papers_state():
    mnist, fashion = (apply_recipe("mspcaps_paper", data=d) for d in ("mnist", "fashion_mnist"))
    assert (mnist.epochs, mnist.augment, mnist.lr) == (100, ("rotate=15",), 5e-4)
    assert (fashion.epochs, fashion.augment, fashion.lr) == (300, ("crop=4", "flip"), 1e-4)
    assert apply_recipe("mspcaps_paper", data="svhn").model_args == {"coupling_drop": 0.0}
    assert apply_recipe("mspcaps_paper").mean == (0.4914, 0.4822, 0.4465)
    efficient = apply_recipe("efficient_capsnet_mnist")
    assert (efficient.lr, efficient.decay_rate, efficient.batch_size, efficient.min_lr) == (5e-4, 0.97, 16, 5e-5)
    assert apply_recipe("mspcaps_paper", model="mspcaps_large").model == "mspcaps_large"


def test_recipes_of_capsules_hold_what_the_papers_state():
    def stated(name, *fields, data=None):
        config = apply_recipe(name, data=data)
        return tuple(getattr(config, each) for each in ("optimizer", "lr", "weight_decay", "batch_size", *fields))

    decay = ("schedule", "decay_rate", "decay_steps")
    found = stated("matrix_capsnet_paper", "loss", *decay)
    assert found == ("adam", 3e-3, 2e-7, 64, "spread_sigmoid", "exponential", 0.96, 20_000)
    assert stated("variational_bayes", "epochs", "schedule") == ("adam", 1e-3, 0.0, 128, 300, "constant")
    assert stated("self_routing", "epochs", "augment") == ("sgd", 0.1, 1e-4, 64, 350, ("crop=4", "flip"))
    for data, augment in (("svhn", ("crop=4",)), ("smallnorb", ("brightness=0.125", "contrast=0.7:1.3"))):
        assert stated("self_routing", "epochs", "augment", data=data) == ("sgd", 0.1, 1e-4, 64, 200, augment)
    found = stated("inverted_dot_product", "epochs", "augment")
    assert found == ("sgd", 0.1, 5e-4, 128, 350, ("crop=4", "flip"))
    for name, shift in (("sparse_caps", "shift=2"), ("sparse_caps_affnist", "shift=6")):
        found = stated(name, "augment", "task", *decay)
        assert found == ("adam", 1e-3, 0.0, 128, (shift,), "reconstruction", "exponential", 0.96, 2000)
        assert apply_recipe(name).epochs * 60_000 // 128 == 30_000
    for name, loss in (("deepcaps", "auto"), ("deepcaps_strict_margins", "hard_margin")):
        assert stated(name, "epochs", "loss") == ("adam", 1e-3, 0.0, 256, 100, loss)
        config = apply_recipe(name)
        rates = [learning_rate(config, 195 * epoch, 195) for epoch in (0, 10, 20)]
        assert rates == pytest.approx([1e-3, 5e-4, 2.5e-4])


@pytest.mark.parametrize(
    ("older", "name"), [("kiefer", "capsnet_routing_study"), ("deepcaps_second", "deepcaps_strict_margins")]
)
def test_older_names_of_recipes(older, name):
    assert apply_recipe(older) == apply_recipe(name) and is_recipe(older) and older not in list_recipes()
    variants = make_study(["capsnet:routing_steps=2", "mspcaps_tiny"], older).variants.values()
    assert all(variant.recipe == older for variant in variants)
    assert f"--recipe {name}" in command_of(apply_recipe(older))


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UsageError, match="mspcaps_paper"):
        apply_recipe("mspcap_paper")


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    former = tmp_path / "config.yaml"
    former.write_text(TrainConfig(epochs=3).to_yaml() + "find_lr: false\ncallbacks: []\n")
    assert TrainConfig.from_yaml(former) == TrainConfig(epochs=3)
    former.write_text("callbacks: [learning]\n")
    with pytest.raises(UsageError, match="callbacks"):
        TrainConfig.from_yaml(former)
