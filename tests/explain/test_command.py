"""`mereo explain` as a person uses it: the files of the folder, the printed lines, and wrong use in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.explain import write_explanations
from mereo.explain.folder import file_name
from mereo.models import CapsuleClassifier, save_weights
from pictures import picture

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]
Call = Callable[..., tuple[int, str, str]]
HOSTILE = "<script>alert(1)<&'.png"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> Call:
    """call(*words): `mereo explain` with capsnet, mspcaps and their weights, and three photos."""
    monkeypatch.chdir(tmp_path)
    for name, kind in (("capsnet", "capsnet"), ("mspcaps", "three scales")):
        save_weights(f"{name}.safetensors", make(kind), class_names=tuple("abcdefghij"))
    Path("photos").mkdir()
    for seed, name in enumerate(("one.png", "two.png", HOSTILE)):
        picture(seed, (40, 30)).save(f"photos/{name}")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["explain", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def files(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.long
def test_everything_in_a_folder(call: Call) -> None:
    code, out, err = call("photos", "--weights", "capsnet.safetensors")
    assert code == 0, err
    names = [f"000{n}-{name}.png" for n, name in enumerate(("_script_alert_1_", "one", "two"), start=1)]
    expected = {"explanation.png", "gradients.png", "trees.html"}
    expected |= {f"{kind}/{name}" for kind in ("trees", "sweeps") for name in names}
    assert files("explanation") == expected
    assert {line.partition(": ")[2] for line in out.splitlines()} == {f"explanation/{name}" for name in expected}
    for name in expected - {"trees.html"}:
        with Image.open(f"explanation/{name}") as image:
            assert image.width > 600 and len(image.convert("L").getcolors(1 << 16)) > 20
    assert "&lt;script&gt;alert(1)&lt;&amp;&#x27;.png" in Path("explanation/trees.html").read_text()
    assert "explained: " in err
    # A second call does not touch what the first one wrote.
    assert call("photos/one.png", "--weights", "capsnet.safetensors", "--only", "picture")[0] == 0
    assert files("explanation-2") == {"explanation.png"}


@pytest.mark.long
def test_what_a_model_cannot_give_is_reported_in_a_line(call: Call) -> None:
    code, _, err = call("photos/one.png", "--weights", "mspcaps.safetensors", "--out", "seen", "--keep", "2")
    assert code == 0, err
    assert err.count("no sweeps: MSPCaps has no decoder\n") == 1
    assert files("seen") == {"explanation.png", "gradients.png", "trees.html", "trees/0001-one.png"}
    code, _, err = call("photos/one.png", "--weights", "mspcaps.safetensors", "--only", "sweeps", "--out", "other")
    assert code == 2 and "MSPCaps has no decoder" in err and err.count("\n") == 1 and not Path("other").exists()


def test_an_unreadable_image_is_the_only_thing_that_is_reported(call: Call) -> None:
    Path("photos/cut.png").write_bytes(Path("photos/one.png").read_bytes()[:300])
    code, out, err = call("photos/cut.png", "--weights", "mspcaps.safetensors")
    assert (code, out) == (1, "") and err.splitlines() == [err.strip()] and "cut.png cannot be read" in err


def test_the_smallest_and_the_deepest_image_are_explained(call: Call) -> None:
    Image.new("L", (1, 1), 200).save("photos/dot.png")
    Image.new("I;16", (20, 20), 40_000).save("photos/deep.png")
    code, out, err = call("photos/dot.png", "photos/deep.png", "--weights", "mspcaps.safetensors", "--out", "seen.png")
    assert (code, out) == (0, "picture: seen.png\n"), err


def test_a_run_without_a_finished_epoch_is_named(call: Call) -> None:
    Path("runs/young").mkdir(parents=True)
    Path("runs/young/config.yaml").write_text("model: capsnet\n")
    code, out, err = call("photos/one.png", "--weights", "runs/young")
    assert (code, out) == (2, "") and "weights are 'runs/young', a run without weights yet" in err


def test_a_folder_below_a_file_is_refused(call: Call) -> None:
    Path("file").write_text("")
    for out in ("file/seen", "file/seen.png", "file/seen.html"):
        code, _, err = call("photos/one.png", "--weights", "mspcaps.safetensors", "--out", out)
        assert code == 1 and f"cannot write {out}" in err


@pytest.mark.long
def test_a_file_holds_one_kind(call: Call) -> None:
    assert call("photos", "--weights", "capsnet.safetensors", "--out", "a.html")[1] == "page: a.html\n"
    assert Path("a.html").read_text().count('class="case"') == 3
    assert call("photos", "--weights", "capsnet.safetensors", "--out", "b/a.png")[1] == "picture: b/a.png\n"
    for words, message in (
        (("--out", "a.html", "--only", "trees"), "trees"),
        (("--out", "capsnet.safetensors"), ".png or .html"),
        (("--out", "foo.JPG"), ".png or .html"),
        (("--out", "foo.pdf", "--only", "picture"), ".png or .html"),
        (("--keep", "0"), "keep is 0"),
        (("--only", "sweep"), "sweeps"),
    ):
        code, _, err = call("photos", "--weights", "capsnet.safetensors", *words)
        assert code == 2 and message in err and err.count("\n") == 1
    assert not list(Path().glob("foo*"))


def test_a_folder_may_have_a_point_in_its_name(call: Call) -> None:
    code, out, _ = call("photos", "--weights", "capsnet.safetensors", "--out", "seen.v2", "--only", "picture")
    assert code == 0 and out == "picture: seen.v2/explanation.png\n"


@pytest.mark.long
def test_many_images_come_in_batches(call: Call) -> None:
    Path("many").mkdir()
    for seed in range(14):
        picture(seed, (10, 10)).save(f"many/{seed:02d}.png")
    # A whole batch of files that are no images, before the good ones.
    for number in range(12):
        Path(f"many/0-{number}.png").write_text("not an image")
    code, out, err = call(
        "many", "--weights", "mspcaps.safetensors", "--only", "page", "trees", "--keep", "1", "--out", "m"
    )
    assert code == 0, err
    assert "none of 12 files" in err
    assert out == "page: m/trees.html\ntrees: m/trees/ (14 files)\n"
    assert len(files("m/trees")) == 14 and Path("m/trees.html").read_text().count('class="case"') == 14
    code, out, err = call("many", "--weights", "mspcaps.safetensors", "--out", "first.png")
    assert code == 0 and "the first 12 of 26 images" in err
    assert call("many", "--weights", "mspcaps.safetensors", "--strict", "--out", "n")[0] == 1
    assert not list(Path("n").rglob("*.html"))
    code, _, err = call("many/0-*.png", "--weights", "mspcaps.safetensors", "--out", "n")
    assert code == 1 and "none of 12 files" in err


@pytest.mark.long
def test_each_batch_has_its_picture(make: Make, some_images: MakeImages, tmp_path: Path) -> None:
    model = make("one scale")
    images = some_images(model)
    found = write_explanations(
        model, [(["a"], images[:1]), (["b"], images[1:])], tmp_path, kinds=("gradients", "picture")
    )
    assert found == {
        "picture": [tmp_path / "explanation.png", tmp_path / "explanation-2.png"],
        "gradients": [tmp_path / "gradients.png", tmp_path / "gradients-2.png"],
    }
    assert files(str(tmp_path)) == {path.name for paths in found.values() for path in paths}


def test_names_of_files_are_harmless() -> None:
    assert file_name(3, "a b.jpeg") == "0003-a_b"
    assert file_name(12, "..") == "0012-_" and file_name(1, "$(rm -r)\n`x`.png") == "0001-_rm_-r_x_"
    assert file_name(1, "Kätzchen ü.png") == file_name(1, "Ka\u0308tzchen u\u0308.png") == "0001-Kätzchen_ü"
    assert file_name(2, "名前 (1).png") == "0002-名前_1_"
    assert file_name(3, "\udcff.png") == "0003-_"
    # Other characters of the name, and of the file that is written first, need room in 255 bytes.
    assert len(file_name(1, "x" * 300).encode()) < 200 > len(file_name(1, "名" * 300).encode()) > 100


def test_refusals(make: Make, tmp_path: Path) -> None:
    model = make("three scales")
    with pytest.raises(UsageError, match="kinds"):
        write_explanations(model, [], tmp_path, kinds=("tree",))
    with pytest.raises(UsageError, match="MSPCaps has no decoder"):
        write_explanations(model, [], tmp_path, kinds=("page", "sweeps"))
    with pytest.raises(UsageError, match="13 images"):
        write_explanations(model, [(["x"] * 13, torch.rand(13, 1, 32, 32))], tmp_path, kinds=("trees",))
