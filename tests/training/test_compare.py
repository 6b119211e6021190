"""Comparisons: how networks are named, what the table holds, that finished runs are kept."""

import contextlib
import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.escape import for_markdown
from mereo.export.rows import run_comparison
from mereo.models import create_model
from mereo.training.compare import images_per_second, make_study, parse_variant
from mereo.training.plain import choose_plain, is_plain, nearest_size
from mereo.training.studies import make_plans, plan_runs

SHARED = {"data": "digits", "epochs": 1, "limit": 32, "batch_size": 16, "device": "cpu", "warmup_epochs": 0.0}
SMALL = "mspcaps_tiny:channels=[4,8,8],img_size=16,patch_size=2"
OTHER = "mspcaps_tiny:channels=[4,8,8],img_size=16,patch_size=2,routing=dynamic"


def test_networks_are_named_with_arguments():
    label, variant = parse_variant("capsnet:routing_steps=1,decoder=false")
    assert label == "capsnet:decoder=false,routing_steps=1"
    assert variant.changes == {"model": "capsnet"} and variant.model_args == {"routing_steps": 1, "decoder": False}
    assert parse_variant("mspcaps_tiny:scales=(0, 1),patch_size=2")[1].model_args == {"scales": [0, 1], "patch_size": 2}
    label, variant = parse_variant("mspcaps_paper:patch_size=2", "digits_demo")
    assert (label, variant.recipe) == ("mspcaps_paper:patch_size=2", "mspcaps_paper")
    assert parse_variant("capsnet", "digits_demo")[1].recipe == "digits_demo"
    # Some networks and recipes have one name.
    assert parse_variant("rs_capsnet")[1].recipe == "rs_capsnet"
    assert parse_variant("rs_capsnet", recipes=False)[1].recipe is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("capsnt", "did you mean 'capsnet'"),
        ("capsnet:routing_step=1", "did you mean 'routing_steps'"),
        ("capsnet:routing_steps", "name=value"),
        ("capsnet:=1", "name=value"),
    ],
)
def test_wrong_names_are_refused(text, told):
    with pytest.raises(UsageError, match=told):
        parse_variant(text)


def test_a_network_is_named_once():
    with pytest.raises(UsageError, match="given twice"):
        make_study(["capsnet:routing_steps=1,decoder=false", "capsnet:decoder=false,routing_steps=1"])
    with pytest.raises(UsageError, match="models is empty"):
        make_study([])
    with pytest.raises(UsageError, match="unknown recipe"):
        make_study(["capsnet"], "nothing")


def test_one_protocol_for_all_but_what_a_recipe_brings():
    configs = plan_runs(make_study(["capsnet", "mspcaps_paper"], "digits_demo"), "compare", 2, "runs", SHARED)
    assert list(configs) == [(name, seed) for seed in (0, 1) for name in ("capsnet", "mspcaps_paper")]
    capsnet, paper = configs["capsnet", 0], configs["mspcaps_paper", 1]
    assert (capsnet.model, capsnet.lr, capsnet.recipe) == ("capsnet", 2e-3, "digits_demo")
    assert (paper.model, paper.lr, paper.recipe, paper.seed) == ("mspcaps_tiny", 5e-4, "mspcaps_paper", 1)
    assert {c.epochs for c in configs.values()} == {1} and {c.data for c in configs.values()} == {"digits"}
    assert (paper.output, paper.name) == ("runs/compare-digits", "mspcaps_paper-seed1")


@pytest.mark.long
def test_a_comparison_goes_on_where_it_was_stopped(tmp_path):
    said: list[str] = []
    first = run_comparison([SMALL], 1, str(tmp_path), SHARED, say=said.append)
    (folder,) = (path for path in (tmp_path / "compare-digits").iterdir() if path.is_dir())
    written = (folder / "results.json").stat().st_mtime_ns
    rows = run_comparison([SMALL, OTHER], 2, str(tmp_path), SHARED, say=said.append)
    steps = [line for line in said if line[0].isdigit() and "/" in line]
    assert len(steps) == 5 and steps[1].startswith("1/4") and steps[1].endswith("seed 0: already finished")
    assert (folder / "results.json").stat().st_mtime_ns == written
    assert [len(row.values) for row in rows] == [2, 2]
    assert rows[0].values[0] == first[0].values[0] and first[0].spread is None
    models = [create_model("mspcaps_tiny", in_chans=1, **parse_variant(text)[1].model_args) for text in (SMALL, OTHER)]
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert [row.parameters for row in rows] == counts
    for row in rows:
        assert 0 <= row.value <= 1 and row.spread is not None and row.chosen_on == "validation"
        assert row.macs > 0 and row.memory > 0 and row.rate > 0 and row.train_rate > 0 and row.test_images == 359
    with pytest.raises(UsageError, match="started with epochs 1"):
        run_comparison([SMALL], 1, str(tmp_path), {**SHARED, "epochs": 2}, say=said.append)


def test_a_wrong_argument_shows_before_any_training(tmp_path):
    said: list[str] = []
    with pytest.raises(UsageError, match="patch_size"):
        run_comparison([SMALL, "mspcaps_tiny:patch_size=77"], 1, str(tmp_path), SHARED, say=said.append)
    assert said == [] and list(tmp_path.iterdir()) == []


def test_speeds_are_of_functions_in_turn():
    order: list[str] = []
    speeds = images_per_second({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 10)
    assert speeds.keys() == {"a", "b"} and min(speeds.values()) > 0
    assert order == ["a", "b"] * 6, "once each to warm up, then by turns"


FEW = ["--epochs", "1", "--limit", "32", "--batch-size", "16", "--warmup-epochs", "0", "--device", "cpu"]
PLAIN = "torchvision:shufflenet_v2_x0_5"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A folder with a comparison by the command, and what that printed."""
    folder, printed = tmp_path_factory.mktemp("compared"), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        assert main(["compare", SMALL, *FEW, "--plain", PLAIN]) == 0
    return folder, printed.getvalue()


@pytest.mark.long
def test_the_command_writes_a_page_and_a_picture(compared, monkeypatch, capsys):
    monkeypatch.chdir(compared[0])
    out, folder = compared[1], Path("runs/compare-digits")
    assert "1/2 mspcaps_tiny:" in out and "inference images/s" in out and "comparison.png" in out
    document = json.loads((folder / "comparison.json").read_text())
    rows = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    page = (folder / "comparison.md").read_text()
    for row, same in zip(rows, document["networks"], strict=True):
        assert float(row["accuracy"]) == same["accuracy"] and row["model"] == same["model"]
        text = f"{100 * same['accuracy']:.2f} | - | 1 | {same['parameters']:,} |"
        assert f"| {for_markdown(row['model'])}" in page and text in page
    with Image.open(folder / "comparison.png") as picture:
        assert picture.width > 1000 and len(picture.convert("L").getcolors(256 * 256)) > 20
    assert main(["compare", SMALL, *FEW, "--plain", PLAIN, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["accuracies"] == document["networks"][0]["accuracies"]
    assert "already finished" in printed.err


@pytest.mark.long
def test_a_plain_network_is_put_beside_them(compared):
    out, folder = compared[1], compared[0] / "runs/compare-digits"
    plain = f"{PLAIN}:img_size=16"
    assert f"compared with the plain {plain}: " in out and "no better than chance" in out
    assert "uniform couplings, %" in out and "shuffled couplings, %" in out
    document = json.loads((folder / "comparison.json").read_text())
    measured = document["measured"]
    assert set(measured) == {parse_variant(SMALL)[0], plain}
    assert measured[plain]["couplings_uniform"] is None
    assert 0 <= measured[parse_variant(SMALL)[0]]["couplings_uniform"] <= 1
    assert {row["model"] for row in document["networks"] if row["plain"]} == {plain}
    assert "compared with the plain" in (folder / "comparison.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("chance", "guesses"), [(1.0, True), (0.0, False)])
def test_networks_that_guess_are_called_that(compared, tmp_path, monkeypatch, capsys, chance, guesses):
    shutil.copytree(compared[0] / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mereo.measure.side_by_side.chance_accuracy", lambda confusion: chance)
    assert main(["compare", SMALL, *FEW, "--plain", "none"]) == 0
    out, page = capsys.readouterr().out, Path("runs/compare-digits/comparison.md").read_text().replace("\\", "")
    assert all(("predicts no better than chance" in text) == guesses for text in (out, page))
    (row,) = json.loads(Path("runs/compare-digits/comparison.json").read_text())["networks"]
    assert row["at_chance"] == guesses


@pytest.mark.parametrize(
    ("parameters", "side", "name"),
    [
        (240_000, 32, "resnet20"),
        (800_000, 28, "resnet56"),
        (9_000_000, 64, "torchvision:resnet18"),
        (240_000, 224, "torchvision:shufflenet_v2_x0_5"),
        (28_000_000, 224, "torchvision:resnet50"),
        (1, 224, "torchvision:shufflenet_v2_x0_5"),
    ],
)
def test_the_plain_network_is_of_about_the_same_size(monkeypatch, parameters, side, name):
    monkeypatch.setattr("mereo.training.plain._available", lambda name: True)
    assert nearest_size(parameters, side) == name


def test_no_plain_network_where_there_is_one_or_none_is_wanted():
    plans = list(make_plans(plan_runs(make_study([SMALL]), "compare", 1, "runs", SHARED)).values())
    assert choose_plain(plans, [SMALL], "none") is None
    assert choose_plain(plans, [SMALL, "timm:resnet18"], "auto") is None
    assert choose_plain(plans, ["resnet20:blocks=2"], "auto") is None
    label, variant = choose_plain(plans, [SMALL], "auto")
    assert is_plain(label) and label.endswith(":img_size=16") and variant.changes["loss"] == "auto"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "models is empty"),
        (["capsnt"], "capsnet"),
        (["capsnet", "--seeds", "0"], "seeds is 0"),
        (["capsnet", "--epochs", "0"], "epochs is 0"),
        (["capsnet", "--data", "digitz"], "digits"),
        (["capsnet", "--img-size", "12"], "at least 17"),
        (["capsnet", "--img-size", "32", "24"], "write --img-size 32x24"),
        (["capsnet", "--precision", "fp7"], "precision is 'fp7'"),
        (["capsnet", "--plain", "resnt81"], "unknown network or recipe 'resnt81'"),
        (["."], "compare trained ones with `mereo evaluate . OTHER"),
        (["capsnet", "--plain", "mspcaps_paper"], "plain is 'mspcaps_paper', a recipe"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    err = capsys.readouterr().err
    assert told in err and err.startswith("mereo: error: ") and err.count("\n") == 1
