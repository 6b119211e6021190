"""`mereo export` as a person uses it."""

import json
from pathlib import Path

import pytest

from mereo.cli.main import main
from mereo.data.solids import make_photos
from mereo.export.images import find_images
from mereo.measure.trained_models import images_of_run


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def go(*words):
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return go


@pytest.mark.long
def test_a_table_tells_what_was_compared(call, run):
    code, out, err = call("export", run, "--to", "torch", "timm", "hub", "--out", "net")
    assert code == 0, err
    assert "2/3 timm: writing and comparing" in err
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "form" and "largest difference" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["torch", "timm", "hub"]
    assert all("1, 2, 7" in line and "random, digits test" in line for line in lines[1:])
    accuracy = json.loads((run / "results.json").read_text())["test_best"]["accuracy"]
    assert f"{100 * accuracy:.2f} %" in Path("net/README.md").read_text()
    code, out, err = call("export", "net", "--to", "hub", "--out", "again")
    assert code == 0, err
    card = Path("again/README.md").read_text()
    assert card.replace("again", "net") == Path("net/README.md").read_text()
    code, out, err = call("export", run, "--license", "mit", "--out", "licensed")
    assert code == 0, err
    assert "license: mit\n" in Path("licensed/README.md").read_text()
    assert json.loads(Path("licensed/config.json").read_text())["pretrained_cfg"]["license"] == "mit"


@pytest.mark.long
def test_precision_prints_what_it_costs(call, run):
    code, out, err = call("export", run, "--to", "torch", "--precision", "bf16", "--limit", "40", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["exported"][0]["files"] == ["exported/model.bf16.pt2"]
    assert [c["runner"] for c in document["costs"]] == ["torch fp32", "torch bf16"]
    assert all(c["count"] == 40 and c["accuracy_low"] <= c["accuracy"] for c in document["costs"])
    code, out, err = call("export", run, "--to", "onnx", "--precision", "int8", "--limit", "40")
    assert code == 0, err
    assert "40 test images" in out and "images/s" in out
    assert "onnx fp32" in out and "onnx int8" in out


WRONG = [
    (["--to", "onx"], 2, "onnx"),
    (["--to", "hub", "--precision", "int8"], 2, "onnx, torch"),
    (["--limit", "0"], 2, "limit is 0"),
    (["--batch-size", "0"], 2, "batch_size is 0"),
    (["--data", "digitz"], 2, "digits"),
    (["--out", "taken"], 2, "out is taken, which is a file; give a folder"),
]


@pytest.mark.parametrize(
    ("words", "code", "message"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else None
)
def test_wrong_use_is_one_line(call, run, words, code, message):
    Path("taken").write_text("a file")
    done, out, err = call("export", run, *words)
    *_, last = err.splitlines()
    assert done == code and last.startswith("mereo: error: ") and message in last
    assert "Traceback" not in out + err


def test_without_weights_or_images(call, run):
    code, _, err = call("export")
    assert code == 2 and "no run in runs/" in err and err.count("\n") == 1
    code, _, err = call("export", "nothing")
    assert code == 2 and err.count("\n") == 1


def test_the_images_of_a_run_are_used_where_they_are_but_no_path_of_a_weight_file(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_photos("photos", images=3)
    model = make("mspcaps_tiny", in_chans=3, num_classes=5)
    model.class_names, model.metadata = ("airplane", "animal", "car", "human", "truck"), {"data": "photos"}
    best = Path("runs/one/weights/best.safetensors")
    best.parent.mkdir(parents=True)
    best.write_bytes(b"")
    assert images_of_run(model, Path("runs/one")) is None
    Path("runs/one/config.yaml").write_text("data: photos\n")
    for source in (Path("runs/one"), best):
        assert images_of_run(model, source) == "photos"
    with pytest.warns(UserWarning, match="set aside"):
        images, reason = find_images(model, None, None, None, "photos")
    assert reason == "" and images is not None and len(images.test) == 3
    images, reason = find_images(model, None, None, None)
    assert images is None and "--data" in reason
    for other in ("/", "..", "nothing", "digits"):
        Path("runs/one/config.yaml").write_text(f"data: {other}\n")
        model.metadata = {"data": other}
        assert images_of_run(model, Path("runs/one")) is None
