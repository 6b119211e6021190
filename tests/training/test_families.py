"""Families of networks for a comparison: which are chosen, their plain counterparts, and the whole command."""

import json
import statistics
from pathlib import Path

import pytest
from PIL import Image

from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.export import rows
from mereo.measure import robustness
from mereo.models import MODELS, CapsuleClassifier
from mereo.models.registry import outline
from mereo.training import estimate, families
from mereo.training.compare import parse_variant
from mereo.training.families import family_networks, plain_networks, smallest_presets, upright_augmentation
from mereo.training.plan import make_plan
from mereo.training.recipes import RECIPES, apply_recipe


def size_of(text: str, **shape: int) -> int:
    _, variant = parse_variant(text)
    model = outline(variant.changes["model"], **{**shape, **variant.model_args})
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_capsule_network_of_the_catalogue_is_compared() -> None:
    kinds = {e.family for e in MODELS.values() if e.module.__module__.startswith("mereo.models.capsule.")}
    networks, left_out = family_networks("capsule", "digits", side=32)
    plain = [text for text in networks if text.startswith("resnet20:")]
    chosen = [MODELS[text.partition(":")[0]] for text in networks[: -len(plain)]]
    assert len(plain) == 3 and networks[-3:] == plain
    assert {entry.family for entry in chosen} == kinds and len(chosen) == len(kinds) and not left_out
    assert any(issubclass(entry.module, CapsuleClassifier) for entry in chosen)
    for entry in chosen:
        assert entry.parameters == min(e.parameters for e in MODELS.values() if e.family == entry.family)
    shape = {"img_size": 32, "in_chans": 1, "num_classes": 10}
    middle = statistics.median(size_of(text, **shape) for text in networks[: -len(plain)])
    assert all(abs(size_of(text, **shape) / middle - 1) < 0.1 for text in plain)


def test_plain_networks_have_the_size_that_is_asked_for() -> None:
    for parameters in (20_000, 400_000):
        texts = plain_networks(parameters, 32, 2, 5)
        sizes = [size_of(text, img_size=32, in_chans=2, num_classes=5) for text in texts]
        assert all(abs(size / parameters - 1) < 0.15 for size in sizes) and len(set(texts)) == 3


def test_a_preset_that_does_not_take_the_size_gives_way_to_the_next_or_is_left_out() -> None:
    presets = {entries[0].family: [entry.name for entry in entries] for entries in smallest_presets("capsule")}
    names, left_out = family_networks("capsule", "digits", side=9)
    for kind, entries in presets.items():
        assert any(name.partition(":")[0] in entries for name in names) or any(
            line.startswith(f"{kind} is left out") for line in left_out
        )
    assert left_out
    with pytest.raises(UsageError, match="img_size is 1"):
        family_networks("capsule", "digits", side=1, only=["efficient_capsnet"])


def test_some_kinds_can_be_named() -> None:
    names, _ = family_networks("capsule", "solids", only=["matrix_capsnet"])
    assert names[0].partition(":")[0] == "matrix_capsnet_68k" and len(names) == 4
    _, variant = parse_variant(names[0])
    assert variant.model_args == families.ARGUMENTS["matrix_capsnet"]
    with pytest.raises(UsageError, match="matrix_capsnet"):
        family_networks("capsule", "solids", only=["matrix_capsnt"])
    with pytest.raises(UsageError, match="capsule"):
        family_networks("capsules", "solids")


def test_images_are_upright_in_training() -> None:
    assert upright_augmentation("digits") == ("crop=2",)
    assert upright_augmentation("mnist") == ("shift=2",)
    assert upright_augmentation("multimnist") == ("none",)


@pytest.mark.long
def test_the_command_compares_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(robustness, "IMAGES", 24)
    monkeypatch.setattr(robustness, "ATTACKED", 6)
    monkeypatch.setattr(estimate, "TIMING_SECONDS", 0.1)
    monkeypatch.setattr(rows, "BATCH", 2)
    monkeypatch.setattr(families, "DEPTHS", (1,))
    words = [
        "compare", "efficient_capsnet", "--family", "capsule", "--data", "digits", "--epochs", "1", "--limit", "20",
        "--batch-size", "16", "--img-size", "32", "--device", "cpu",
    ]  # fmt: skip
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "2/2 resnet20" in out and "for 2 trainings" in out and "rotated, %" in out
    folder = tmp_path / "runs" / "compare-digits"
    content = json.loads((folder / "comparison.json").read_text())
    names = [row["model"] for row in content["networks"]]
    assert set(content["measured"]) == set(names) and len(names) == 2 and "efficient_capsnet_smallnorb" in names
    for values in content["measured"].values():
        shares = [values[k] for k in ("accuracy", "rotation", "translation", "occlusion", "apgd", "calibration_error")]
        assert all(0 <= share <= 1 for share in shares) and values["familiar_viewpoints"] is None
    config = (folder / "efficient_capsnet_smallnorb-seed0" / "config.yaml").read_text()
    assert "- crop=2" in config and "rotate" not in config
    for name in ("comparison", "curves"):
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.width < 1200, "about as wide as a page, so that its text is readable there"
    assert set(content["curves"]) == set(names) and len(content["curves"][names[0]]["rotation"]) > 2
    page = (folder / "comparison.md").read_text()
    assert "| attacked (APGD), % |" in page and "curves.png" in page
    assert all(row["memory"] > 0 for row in content["networks"])
    monkeypatch.setattr(robustness, "_measure", None)
    assert main(words) == 0
    again = capsys.readouterr().out
    assert "already finished" in again and "timing a step" not in again


def test_every_capsule_network_has_a_recipe_for_digits() -> None:
    recipes = [name for name, r in RECIPES.items() if "digits" in (r.changes["data"], *r.by_data)]
    models = {}
    for name in recipes:
        config = apply_recipe(name, data="digits")
        models[config.model] = config
    for presets in smallest_presets("capsule"):
        chosen = [models[entry.name] for entry in presets if entry.name in models]
        assert chosen, presets[0].family
        for config in chosen:
            plan = make_plan(config)
            outline(config.model, **plan.arguments)
            assert config.epochs <= 40
