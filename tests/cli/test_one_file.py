"""Exports to one file, and the list of networks."""

from pathlib import Path

import pytest

from mereo.cli.main import main


@pytest.mark.long
def test_a_file_is_written_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "mspcaps_tiny.mnist", "--out", "new/net.pt2", "--limit", "4"]) == 0
    assert [path.name for path in Path("new").iterdir()] == ["net.pt2"] and "new/net.pt2" in capsys.readouterr().out
    assert main(["export", "mspcaps_tiny.mnist", "--out", "net.onnx", "--to", "torch"]) == 2
    assert "net.onnx" in capsys.readouterr().err


@pytest.mark.long
def test_a_file_with_preprocessing_takes_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "mspcaps_tiny.mnist", "--out", "net.onnx", "--preprocess", "--limit", "4"]) == 0
    (pixels,) = onnxruntime.InferenceSession("net.onnx").get_inputs()
    assert pixels.type == "tensor(uint8)" and [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_the_list_of_networks_begins_with_images_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    table = capsys.readouterr().out.rstrip().rpartition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 100
    assert table[0].split() == ["name", "kind", "input", "size", "MACs", "weights"]
    kinds = [line[48:].split()[0] for line in table[1:]]
    assert set(kinds[: len(kinds) // 2]) == {"capsules", "vision"} and "tokens" in kinds[len(kinds) // 2 :]
