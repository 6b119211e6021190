"""The experiments that replace the attention of a trained transformer, at sizes of a test."""

import json
from pathlib import Path

import pytest
import torch

from mereo.cli.main import main
from mereo.core import record
from papers.common import replaced_attention
from papers.common.replaced_attention import Teacher
from papers.sea import sea as sea_attention
from papers.sparsifiner import sparsifiner as sparsifiner_attention

FEW = ["--limit", "48", "--epochs", "1", "--batch-size", "16", "--images", "40"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_attention, "DEPTH", 3)
    monkeypatch.setattr(replaced_attention, "PATCH", 8)
    for module in (sea_attention, sparsifiner_attention):
        monkeypatch.setattr(module, "TOKENS", 17)


@pytest.mark.parametrize(("name", "rows"), [("sea", 7), ("sparsifiner", 6)])
def test_the_experiments_run(name: str, rows: int, tmp_path: Path) -> None:
    assert main(["reproduce", name, *FEW, "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / f"{name}-digits" / "results.json").read_text())
    ((title, table),) = results["tables"].items()
    assert title.startswith("3 steps of") and len(table) == rows
    first = table[0]
    assert first["agrees %"] == 100 and abs(first["KL"]) < 1e-6
    assert all(0 <= row["test %"] <= 100 and row["KL"] > -1e-6 for row in table)
    if name == "sea":
        assert [row["keys"] for row in table] == [17, 8, 8, 16, 32, 65, 0]
    else:
        learned = [row for row in table if row["predictor"] == "learned"]
        assert [row["keep"] for row in learned] == [0.5, 0.25, 0.1, 0.05]
        kept = [row["attention %"] for row in learned]
        assert kept == sorted(kept, reverse=True) and 0 < kept[-1] < kept[0] < 100


def test_the_attention_that_is_kept_is_measured_on_the_teacher() -> None:
    torch.manual_seed(0)
    model = replaced_attention.DeepTransformer((1, 32, 32), 10, 3, patch=8, dim=12, heads=3, residual="pre_norm")
    images = torch.randn(4, 1, 32, 32)
    teacher = Teacher(model.eval(), "digits", None, images, torch.arange(4), None, torch.device("cpu"))  # type: ignore[arg-type]
    student = sparsifiner_attention.sparsifiner(model, 1.0, tokens=17)
    assert sparsifiner_attention.attention_kept(teacher, student) == pytest.approx(100)
    row = teacher.row(student)
    assert row["agrees %"] == 100 and row["KL"] == pytest.approx(0, abs=1e-6)
    half = sparsifiner_attention.sparsifiner(model, 0.5, tokens=17)
    share, total = sparsifiner_attention.attention_kept(teacher, half), []
    with record(half) as ours, record(sparsifiner_attention.watchable(model)) as _:
        half(images)
    dense = sparsifiner_attention.watchable(model)
    with record(dense) as expected:
        dense(images)
    for name, value in expected.items():
        for b, h, r in ((b, h, r) for b in range(4) for h in range(3) for r in range(1, 17)):
            total.append(sum(value[b, h, r, s].item() for s in range(17) if ours[name][b, h, r, s] > 0))
    assert share == pytest.approx(100 * sum(total) / len(total), rel=1e-4)
