"""The pages for people with photographs, read and run from top to bottom on a few pictures."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image, ImageOps

import mereo
from mereo.cli.main import main
from mereo.data import dataset_info
from mereo.data.solids import make_photos
from mereo.data.solids.__main__ import main as make
from site_pages import commands, data

DOCS = Path(__file__).parents[2] / "docs"
NETWORK = 'model_args={"channels": [4, 8, 8]}'
RESIDUAL = 'model="resnet14_64", model_args={"blocks": 1, "widths": [4, 8, 8]}'
SMALLER = {
    "--images 80": "--images 8",
    "images=80": "images=8",
    "mereo train --data photos": "mereo train --data photos --epochs 1 --model resnet14_64"
    " --model-args blocks=1 widths=[4,8,8] --no-tensorboard",
    'mereo.train(data="photos")': f'mereo.train(data="photos", epochs=1, {RESIDUAL}, quiet=True)',
    'name="from_memory")': f'name="from_memory", {NETWORK}, quiet=True)',
    "mereo compare mspcaps_tiny": "mereo compare mspcaps_tiny:channels=[4,8,8] --epochs 1 --limit 16 --img-size 16",
    "ImageClassifier(epochs=2": f"ImageClassifier({NETWORK}, epochs=1",
}
"""What the page says, and what the test runs instead to be quick."""


def blocks_of(page):
    return re.findall(r"^```(python|sh)\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_first_ten_minutes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, names = (DOCS / "photos.md").read_text(), {}
    assert all(phrase in text for phrase in SMALLER)
    in_python = tmp_path / "in_python"
    for language, written in blocks_of("photos.md"):
        block = written
        for phrase, instead in SMALLER.items():
            block = block.replace(phrase, instead)
        if language == "sh":
            for line in block.strip().splitlines():
                program, *words = shlex.split(line)
                code = make(words[2:]) if program == "python" else main(words)
                assert code == 0, (line, capsys.readouterr().err)
        elif "make_photos" in block:
            in_python.mkdir()
            with monkeypatch.context() as elsewhere:
                elsewhere.chdir(in_python)
                exec(block, names)
        else:
            exec(block, names)
    made = [
        sorted(path.relative_to(root) for path in (root / "photos").rglob("*.jpg")) for root in (tmp_path, in_python)
    ]
    assert made[0] == made[1] and len(made[0]) == 40
    assert (tmp_path / "report" / "report.md").exists() and (tmp_path / "explained" / "explanation.png").exists()
    assert names["again"].class_names == ("airplane", "animal", "car", "human", "truck")


@pytest.mark.parametrize("page", ["installation.md", "app.md", "capsule_family.md"])
def test_the_python_of_other_pages_runs(page, capsys):
    (block,) = [block for language, block in blocks_of(page) if language == "python"]
    exec(block, {})
    assert capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("page", [commands.INTRODUCTION, data.DATA, data.TASK])
def test_the_python_of_pages_made_from_the_code_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(block, {})
    assert capsys.readouterr().out


def test_pictures_are_of_several_sizes_some_turned_and_the_same_in_every_run(tmp_path):
    assert make_photos(tmp_path / "first", images=6) == make_photos(tmp_path / "second", images=6) == 30
    files = sorted((tmp_path / "first").rglob("*.jpg"))
    for path in files:
        assert path.read_bytes() == (tmp_path / "second" / path.relative_to(tmp_path / "first")).read_bytes()
    sizes, turned = set(), []
    for path in files:
        with Image.open(path) as image:
            turned.append(image.getexif().get(0x0112) == 6)
            sizes.add(ImageOps.exif_transpose(image).size)
    assert sizes == {(96, 128), (128, 96)} and any(turned) and not all(turned)
    info = dataset_info(str(tmp_path / "first"))
    assert info.num_classes == 5 and info.in_chans == 3
    with pytest.raises(mereo.UsageError, match="not an empty folder"):
        make_photos(tmp_path / "first", images=1)
    with pytest.raises(mereo.UsageError, match="images is 0"):
        make_photos(tmp_path / "third", images=0)


def test_the_command_that_makes_pictures(tmp_path, python, capsys):
    assert make([str(tmp_path / "photos"), "--images", "2"]) == 0
    assert "10 pictures" in capsys.readouterr().out
    assert make([str(tmp_path / "photos")]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    shown = subprocess.run([python, "-m", "mereo.data.solids", "--help"], capture_output=True, text=True, check=True)
    assert "--images" in shown.stdout
