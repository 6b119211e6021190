"""Features of images and the nearest of them: against loops, through files, in Python and on the command line."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.cli.main import main
from mereo.errors import MereoError, UsageError
from mereo.inference.features import nearest

WEIGHTS = "mspcaps_tiny.mnist"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight pictures, the last one a copy of the first."""
    generator = np.random.default_rng(0)
    (tmp_path / "gallery").mkdir()
    for number in range(8):
        pixels = np.random.default_rng(9).integers(0, 256, (32, 32)) if number in (0, 7) else None
        pixels = generator.integers(0, 256, (32, 32)) if pixels is None else pixels
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "gallery" / f"{number}.png")
    return tmp_path / "gallery"


def test_the_nearest_are_those_of_a_loop_and_never_the_query_itself() -> None:
    torch.manual_seed(0)
    gallery, queries = torch.randn(9, 4), torch.randn(3, 4)
    queries[1] = gallery[5]
    places, similar = nearest(gallery, queries, 4, torch.tensor([-1, 5, -1]))
    for q, query in enumerate(queries.double()):
        cosines = [
            float(query @ g / (query.norm() * g.norm())) if (q, n) != (1, 5) else -2
            for n, g in enumerate(gallery.double())
        ]
        order = sorted(range(9), key=lambda n: -cosines[n])[:4]
        assert places[q].tolist() == order and similar[q].tolist() == pytest.approx([cosines[n] for n in order])
    zero = nearest(torch.zeros(2, 3), torch.ones(1, 3), 2)
    assert zero[0].tolist() == [[0, 1]] and zero[1].tolist() == [[0, 0]]


def test_features_are_what_the_last_layer_reads(folder: Path, tmp_path: Path) -> None:
    model = mereo.load(WEIGHTS).eval()
    embedded = mereo.embed(WEIGHTS, folder, out=tmp_path / "vectors.npy")
    image = torch.from_numpy(np.array(Image.open(folder / "3.png")) / 255).float()[None, None]
    ready = (image - model.pretrained_cfg["mean"][0]) / model.pretrained_cfg["std"][0]
    with torch.no_grad():
        wanted = model.forward_head(model.forward_features(ready), pre_logits=True)[0]
    np.testing.assert_allclose(embedded.vectors[3], wanted.numpy(), atol=1e-5)
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), embedded.vectors)
    assert (tmp_path / "vectors.images.txt").read_text().split() == [str(path) for path in embedded.images]
    mereo.embed(WEIGHTS, folder, out=tmp_path / "vectors.csv")
    with (tmp_path / "vectors.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[1][0] == str(folder / "0.png") and float(rows[4][1]) == pytest.approx(float(embedded.vectors[3, 0]))
    in_memory = mereo.embed(model, image[0])
    assert in_memory.vectors.shape == (1, wanted.numel()) and in_memory.written == []


def test_a_copy_is_found_first_and_written_as_table_and_picture(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["search", WEIGHTS, "gallery", "gallery/0.png", "--top", "3"]) == 0
    with (tmp_path / "search" / "nearest.csv").open() as file:
        columns, row = csv.reader(file)
    assert columns[:3] == ["query", "nearest 1", "similarity 1"] and len(columns) == 7
    assert row[:3] == ["gallery/0.png", "gallery/7.png", "1.0000"] and "gallery/0.png" not in row[1:]
    assert (tmp_path / "search" / "nearest.png").stat().st_size and "gallery/7.png" in capsys.readouterr().out
    found = mereo.search(WEIGHTS, folder, [Image.open(folder / "7.png")], top=50).found
    assert len(found[0].images) == 8 and found[0].similarities[0] == pytest.approx(1)
    assert {path.name for path in found[0].images[:2]} == {"0.png", "7.png"}


def test_a_network_of_timm_is_named_with_its_published_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    asked = {}

    def create(name: str, pretrained: bool) -> torch.nn.Module:
        asked[name] = pretrained
        return mereo.create_model(name)

    monkeypatch.setattr("mereo.api.networks.create_model", create)
    embedded = mereo.embed("timm:test_resnet", folder / "0.png")
    assert asked == {"timm:test_resnet": True} and np.isfinite(embedded.vectors).all()


def test_what_cannot_be_written_or_searched_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"out is .*vectors\.txt"):
        mereo.embed(WEIGHTS, folder, out=tmp_path / "vectors.txt")
    with pytest.raises(UsageError, match="gallery has one image"):
        mereo.search(WEIGHTS, folder / "0.png", folder / "0.png")
    with pytest.raises(UsageError, match="top is 0"):
        mereo.search(WEIGHTS, folder, folder / "0.png", top=0)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    with pytest.raises(MereoError, match=r"broken\.png"):
        mereo.embed(WEIGHTS, broken)
    with pytest.warns(UserWarning, match=r"broken\.png"):
        assert len(mereo.embed(WEIGHTS, [broken, folder]).images) == 8


def test_what_an_earlier_call_wrote_is_replaced_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("vectors.npy", "vectors.csv"):
            mereo.embed(WEIGHTS, folder / "0.png", out=tmp_path / name)
        mereo.search(WEIGHTS, folder, folder / "0.png", top=1, out=tmp_path / "found")
    (tmp_path / "mine.csv").write_text("image,label\na.png,1\n")
    np.save(tmp_path / "mine.npy", np.zeros((3, 2)))
    for name in ("mine.csv", "mine.npy"):
        content = (tmp_path / name).read_bytes()
        with pytest.raises(UsageError, match="a file that mereo did not write"):
            mereo.embed(WEIGHTS, folder / "0.png", out=tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
