"""The experiments on sparse attention: their mixers, their data, and short runs as a person starts them."""

import json
from pathlib import Path

import pytest
import torch

from mereo.cli.main import main
from papers.routing_transformer.attention_kinds import DIM, MIXERS, make_blocks
from papers.routing_transformer.far_recall import QUARTER, TOKENS, VALUES, sequences


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_are_causal_in_evaluation_and_alike_in_size(name: str) -> None:
    torch.manual_seed(0)
    (block,) = make_blocks(name, 1, 32, 4)
    tokens = torch.randn(2, 32, DIM)
    later = torch.cat((tokens[:, :20], torch.randn(2, 12, DIM)), 1)
    out = block.eval()(tokens)
    torch.testing.assert_close(block(later)[:, :20], out[:, :20], rtol=1e-4, atol=1e-5)
    far = torch.cat((torch.randn(2, 1, DIM), tokens[:, 1:]), 1)
    if name == "local blocks":
        assert torch.equal(block(far)[:, 8:], out[:, 8:])
    elif name != "local and clusters":  # which token is in a cluster is up to its content
        assert (block(far)[:, 31] != out[:, 31]).any()
    weights = sum(p.numel() for p in block.mixer.parameters() if p.dim() == 2) / DIM**2
    assert weights == {"combiner, axial": 6, "local and clusters": 3.5}.get(name, 4)


def test_what_is_asked_for_lies_far_away() -> None:
    keys, values, answers = sequences(5, torch.Generator().manual_seed(0))
    assert (values[:, -QUARTER:] == VALUES).all() and (values[:, :-QUARTER] < VALUES).all()
    for row, marks, asked in zip(keys, values, answers, strict=True):
        for place in range(QUARTER):
            (at,) = (row[:-QUARTER] == row[TOKENS - QUARTER + place]).nonzero().flatten().tolist()
            assert at < QUARTER and marks[at] == asked[place]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "column"),
    [
        ("far_recall", ["--epochs", "1"], "correct %"),
        ("sparse_text", ["--limit", "8", "--images", "2"], "bits per byte"),
    ],
)
def test_they_run(name: str, options: list[str], column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papers.routing_transformer.far_recall.PER_EPOCH", 2)
    command = ["reproduce", name, *options, "--batch-size", "4", "--variants", "local and clusters", "combiner, fixed"]
    assert main([*command, "--output", str(tmp_path)]) == 0
    (file,) = tmp_path.rglob("results.json")
    found = json.loads(file.read_text())
    (rows,) = found["tables"].values()
    assert [row["attention"] for row in rows] == ["local and clusters", "combiner, fixed"]
    assert all(row[column] >= 0 for row in rows)
    assert (file.parent / found["pictures"][0]).stat().st_size > 10_000


def test_unknown_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("far_recall", "sparse_text"):
        assert main(["reproduce", name, "--variants", "local block", "--output", str(tmp_path)]) == 2
        assert "local blocks" in capsys.readouterr().err
