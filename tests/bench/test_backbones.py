"""The suite of backbones on a network of a few weights, with a stand-in for timm's class and without timm."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mereo.bench import Bench, Request, get_suite, tables_of
from mereo.bench.cases import parse_sizes
from mereo.bench.suites import backbones
from mereo.bench.suites.backbones import PRESETS, SMALL
from mereo.bench.tables import heading
from mereo.cli.bench import choose_models
from mereo.errors import UsageError
from mereo.models import get_model_entry, is_model
from mereo.models.layout import LAYOUTS, Pair, register_layout
from plain_cnn import PlainCNN, registered


class Elsewhere(nn.Module):
    """The plain network as another library might write it: the rows of the classifier reversed, names of its own."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong
        self.conv = nn.ModuleList(nn.Conv2d(i, o, 3, 2, 1) for i, o in ((3, 6), (6, 8), (8, 12)))
        self.bn = nn.ModuleList(nn.BatchNorm2d(o) for o in (6, 8, 12))
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(12, 5)

    def forward(self, images: Tensor) -> Tensor:
        for conv, bn in zip(self.conv, self.bn, strict=True):
            images = bn(conv(images)).relu()
        scores: Tensor = self.fc(self.drop(images.mean((2, 3)))).flip(1)
        return scores


class Stopped(Elsewhere):
    """The same outputs, but one convolution has only half of its gradient."""

    def forward(self, images: Tensor) -> Tensor:
        weight = self.conv[2].weight
        weight.register_hook(lambda gradient: gradient / 2)
        return super().forward(images)


class Mistaken(Elsewhere):
    """The same, but its classifier sees half the features."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) / 2


def pairs(model: PlainCNN) -> Iterator[Pair]:
    for part in ("weight", "bias"):
        yield Pair(f"head.{part}", f"fc.{part}", lambda rows: rows.flip(0), lambda rows: rows.flip(0))
    for i in range(len(model.stages)):
        yield Pair(f"stages.{i}.0", f"conv.{i}")
        yield Pair(f"stages.{i}.1", f"bn.{i}")


@pytest.fixture(autouse=True)
def _plain() -> Iterator[None]:
    for kept in (backbones._theirs, backbones._ours):
        kept.cache_clear()
    with registered():
        yield


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A stand-in for timm that has one network."""
    stub = SimpleNamespace(create_model=lambda name: Elsewhere(), is_model=lambda name: name == "plain_cnn")
    monkeypatch.setitem(sys.modules, "timm", stub)
    stub.__spec__ = SimpleNamespace()
    register_layout("timm", PlainCNN, pairs, classes=("Elsewhere", "Mistaken", "Stopped"), arguments=lambda source: {})
    yield stub
    LAYOUTS.pop()


def measured(*models: str, **changes: Any) -> Any:
    how = {"quick": True, "seconds": 1e-6, "threads": (1,), "memory": False, **changes}
    return Bench(get_suite("backbones"), Request("backbones", sizes=parse_sizes([f"model={','.join(models)}"]), **how))


def statuses(run: Any, mode: str) -> dict[str, str]:
    return {m.contender: m.status for m in run.measurements if m.mode == mode and m.sizes["batch"] == 1}


@pytest.mark.usefixtures("timm")
def test_ours_and_timm_with_the_same_weights() -> None:
    run = measured("plain_cnn").measure()
    names = ["timm", "timm channels-last", "ours", "ours fused"]
    assert statuses(run, "forward") == dict.fromkeys(names, "ok")
    assert statuses(run, "training") == {**dict.fromkeys(names, "ok"), "ours fused": "left out"}
    trained = {m.contender: m for m in run.measurements if m.mode == "training"}
    assert trained["ours"].gradient_error is not None and trained["ours"].gradient_error < 1e-4
    assert {(m.sizes["batch"], m.mode) for m in run.measurements} == {(1, "forward"), (1, "training")}
    (table,) = run.tables
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert [(row["mode"], row["batch"]) for row in rows] == [("forward", "1"), ("training", "1")]
    assert all(row["timm / ours"].endswith("x") and row["network"] == "plain_cnn" for row in rows)
    assert rows[1]["timm / fused"] == "-" and rows[0]["timm / fused"] != "-"
    assert tables_of(run)[-1].title == "ours and timm"


def test_a_network_that_computes_something_else_has_no_ratio(timm: SimpleNamespace) -> None:
    timm.create_model = lambda name: Mistaken()
    run = measured("plain_cnn").measure()
    # Its weights cannot be converted: the conversion compares the functions.
    assert statuses(run, "forward")["ours"] == statuses(run, "training")["ours"] == "failed"
    (table,) = run.tables
    assert "timm" in table["columns"] and not {"ours", "timm / ours"} & set(table["columns"])


@pytest.mark.usefixtures("timm")
def test_code_from_outside_gets_the_weights_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = SimpleNamespace(same=Elsewhere, mistaken=Mistaken, other=lambda: nn.Linear(3, 5))
    monkeypatch.setitem(sys.modules, "outside", outside)
    run = measured("plain_cnn", outside=("outside:same", "outside:mistaken", "outside:other")).measure()
    for mode in ("forward", "training"):
        shown = statuses(run, mode)
        assert (shown["outside:same"], shown["outside:mistaken"]) == ("ok", "WRONG")
        assert shown["outside:other"] == "left out"
    assert any("missing" in m.note or "unexpected" in m.note for m in run.measurements if m.contender.endswith("other"))


def test_gradients_of_something_else_are_noticed(timm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda call, **how: call)
    timm.create_model = lambda name: Stopped()
    run = measured("plain_cnn", quick=False).measure()
    assert statuses(run, "forward")["ours"] == "ok"
    assert {
        (m.sizes["batch"], m.status) for m in run.measurements if m.mode == "training" and m.contender == "ours"
    } == {(8, "WRONG")}
    (note,) = {m.note for m in run.measurements if m.status == "WRONG"}
    assert "float64" in note


@pytest.mark.parametrize("installed", [True, False])
def test_without_a_class_of_timm_ours_is_compared_with_itself(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr("mereo.bench.suites.backbones.find_spec", lambda name: None)
    run = measured("plain_cnn").measure()
    assert statuses(run, "forward") == {
        "ours": "ok", "ours fused": "ok", "timm": "left out", "timm channels-last": "left out",
    }  # fmt: skip
    why = "no conversion between timm's plain_cnn and ours is registered" if installed else "timm is not installed"
    assert {m.note for m in run.measurements if m.contender == "timm"} == {why}


def test_a_preset_that_is_not_registered_is_skipped_with_a_line() -> None:
    lines: list[str] = []
    bench = measured("plain_cnn", "davit_nowhere")
    bench.progress = lambda line, done, total: lines.append(line)
    run = bench.measure()
    assert {m.sizes["model"] for m in run.measurements} == {"plain_cnn"}
    assert any("skipped" in line and "davit_nowhere" in line for line in lines)
    assert any("davit_nowhere" in line for line in heading(run))
    with pytest.raises(UsageError, match=r"nothing to measure.*davit_nowhere"):
        measured("davit_nowhere")


def test_quick_measures_a_small_network_of_each_family_once() -> None:
    bench = Bench(get_suite("backbones"), Request("backbones", quick=True))
    assert [(case.setting.sizes["model"], case.setting.sizes["batch"]) for case in bench.cases] == [
        (name, 1) for name in SMALL
    ]
    families = [get_model_entry(name).module for name in SMALL]
    assert {get_model_entry(name).module for name in PRESETS} >= set(families) and len(set(families)) == len(SMALL)
    chosen = choose_models(get_suite("backbones"), "davit_*")
    assert {case.setting.word("model") for case in Bench(chosen, Request("backbones", quick=True)).cases} >= {
        "davit_base"
    }


def test_a_pattern_chooses_among_all_networks() -> None:
    suite = get_suite("backbones")
    assert choose_models(suite, "plain*").sweeps["model"] == ("plain_cnn",)
    assert "capsnet" in choose_models(suite, "caps*").sweeps["model"]
    assert {"davit_tiny", "davit_base"} <= set(choose_models(suite, "davit*").sweeps["model"])
    with pytest.raises(UsageError, match="no network matches"):
        choose_models(suite, "nothing*")


@pytest.mark.usefixtures("timm")
def test_compiled_contenders_are_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda call, **how: call)
    run = measured("plain_cnn", quick=False).measure()
    for mode in ("forward", "training"):
        status = {m.contender: m.status for m in run.measurements if m.mode == mode and m.sizes["batch"] == 8}
        assert status["ours compiled"] == status["timm compiled"] == "ok"


def test_inputs_are_images_of_the_preset() -> None:
    from mereo.bench.suite import Setting

    images, labels = get_suite("backbones").inputs(Setting({"batch": 3, "model": "plain_cnn"}), "forward")
    assert images.shape == (3, 3, 16, 16) and images.is_contiguous() and labels.shape == (3,)
    assert torch.all(labels < 5)


def test_the_presets_that_are_measured_by_default_exist() -> None:
    assert [name for name in PRESETS if not is_model(name)] == []
