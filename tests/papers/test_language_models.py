"""Linear and softmax attention on a short text, as a person runs it."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mereo.cli.main import main
from papers.lightning import language_models


@pytest.mark.long
def test_networks_are_compared_with_each_other_and_with_compressors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_models, "LENGTHS", (16, 32))
    monkeypatch.setattr(language_models, "ROUNDS", 1)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{i} is followed by {i + 1}.\n" for i in range(2000)))
    options = ["--data", str(text), "--limit", "64", "--images", "2", "--batch-size", "8", "--output", str(tmp_path)]
    assert main(["reproduce", "language_models", *options]) == 0
    folder = tmp_path / "language_models-text.txt"
    found = json.loads((folder / "results.json").read_text())
    quality, whole, steps = found["tables"].values()
    assert [row["network"] for row in quality] == ["TNL", "softmax attention", "gzip", "bz2", "xz"]
    assert all(0 < row["bits per byte"] < 8 for row in quality)
    assert quality[0]["parameters"] == pytest.approx(quality[1]["parameters"], rel=0.002)
    for table in (whole, steps):
        assert [row["tokens"] for row in table] == [16, 32]
        assert all(row["times"] == pytest.approx(row["TNL"] / row["softmax attention"], rel=0.1) for row in table)
    with Image.open(folder / found["pictures"][0]) as image:
        assert min(image.size) > 200
