"""The settings of a comparison that are not given: chosen once, the same for all networks, and kept."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mereo.cli.main import main
from mereo.data import dataset_info
from mereo.errors import UsageError
from mereo.models import get_model_entry
from mereo.training import automatic
from mereo.training.automatic import batch_for
from mereo.training.compare import make_study
from mereo.training.compare_defaults import CompareDefaults
from mereo.training.studies import Study, Variant, make_plans, plan_runs

SMALL = "mspcaps_tiny:channels=[4,8,8],patch_size=2"
GIVEN: dict[str, Any] = {"data": "digits", "limit": 64, "minutes": 0.05}


def choose(folder: Path, given: Mapping[str, Any], *texts: str) -> tuple[dict[str, Variant], list[str]]:
    said: list[str] = []
    chooser = CompareDefaults(given, folder, dataset_info("digits"), said.append)
    study = chooser.apply(make_study(texts))
    make_plans(plan_runs(study, "compare", 1, str(folder), given))
    chooser.save()
    return dict(study.variants), said


def test_epochs_and_batch_size_are_those_of_the_first_network_and_the_rate_is_its_own(tmp_path, monkeypatch):
    variants, said = choose(tmp_path, GIVEN, SMALL, "resnet20")
    first, second = (variant.changes for variant in variants.values())
    assert first["batch_size"] == batch_for(64) and {"epochs", "warmup_epochs", "augment"} <= first.keys()
    assert {name: second[name] for name in ("epochs", "batch_size")} == {
        name: first[name] for name in ("epochs", "batch_size")
    }
    ratio = get_model_entry("resnet20").module.usual_rate / get_model_entry("mspcaps_tiny").module.usual_rate
    assert second["lr"] == pytest.approx(ratio * first["lr"], rel=0.05), "the rate follows from the kind of network"
    assert any("--epochs" in line for line in said) and said[-1].startswith("chosen for resnet20: lr ")
    # A second call measures nothing, so that it goes on with the same settings.
    monkeypatch.setattr(automatic, "TrialStep", None)
    again, said = choose(tmp_path, GIVEN, SMALL, "resnet20")
    plans = [make_plans(plan_runs(make_with(each), "compare", 1, "runs", GIVEN)) for each in (variants, again)]
    assert [plan.config for plan in plans[0].values()] == [plan.config for plan in plans[1].values()]
    assert said == [f"settings that are not given are taken from {tmp_path / 'defaults.json'}"]


def make_with(variants: Mapping[str, Variant]) -> Study:
    return replace(make_study(list(variants)), variants=variants)


def test_networks_of_equal_settings_have_one_line(tmp_path):
    given = {"data": "digits", "limit": 64, "epochs": 3, "batch_size": 16, "lr": 1e-3}
    _, said = choose(tmp_path, given, SMALL, "resnet20", "resnet32")
    assert said[-1].startswith("chosen for resnet20, resnet32: ")
    assert "as for the first" not in said[-1], "epochs and batch size are given"
    assert sum("resnet" in line for line in said) == 1


def test_other_settings_choose_anew_and_what_is_given_stays(tmp_path):
    choose(tmp_path, GIVEN, SMALL)
    given = {"data": "digits", "limit": 64, "epochs": 3, "lr": 0.25}
    variants, said = choose(tmp_path, given, SMALL, "capsnet:decoder=false,img_size=20")
    first, second = (variant.changes for variant in variants.values())
    assert not {"epochs", "lr", "minutes"} & (first.keys() | second.keys())
    assert "img_size" not in second, "an argument of the network decides"
    assert sum("classes" in line for line in said) == 1, "the data is described once"
    assert not any(line.startswith("settings that are not given") for line in said)


@pytest.mark.parametrize("text", ["", "[", "[]", '{"given": 1}', '{"given": 1, "networks": {"a": {"size": 1}}}'])
def test_a_file_that_is_none_of_ours_is_replaced(tmp_path, text):
    (tmp_path / "defaults.json").write_text(text)
    given = {"data": "digits", "limit": 64, "epochs": 3}
    choose(tmp_path, given, SMALL)
    assert choose(tmp_path, given, SMALL)[1] == [
        f"settings that are not given are taken from {tmp_path / 'defaults.json'}"
    ]


def test_a_recipe_keeps_its_settings_and_has_no_minutes(tmp_path):
    given = {"data": "digits", "limit": 64, "epochs": 3}
    variants, _ = choose(tmp_path, given, "mspcaps_short", SMALL)
    assert variants["mspcaps_short"].changes == {"model": "mspcaps_tiny"} and "lr" in variants[SMALL].changes
    with pytest.raises(UsageError, match=r"minutes is 0\.05, but mspcaps_short is a recipe.*--epochs"):
        choose(tmp_path, GIVEN, "mspcaps_short")


@pytest.mark.long
def test_the_command_compares_without_any_setting_but_a_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["compare", SMALL, "--minutes", "0.002", "--limit", "64", "--device", "cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "chosen for mspcaps_tiny" in out and out.count("chosen for") == 2
    assert (
        "Protocol: epochs 1, limit 64, batch_size 16, lr " in out and " or " in out.split("Protocol:")[1].split("\n")[0]
    )
    assert main(words) == 0
    assert capsys.readouterr().out.count("already finished") == 2
