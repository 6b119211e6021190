"""The experiment of constellations, on few images and short learning."""

import math

import pytest
import torch
from PIL import Image

from mereo.errors import UsageError
from papers.common.constellations import make_constellations, make_templates
from papers.common.settings import Settings
from papers.constellations import constellations, presets
from papers.constellations.capsnet import ConstellationCapsNet
from papers.constellations.constellation_pictures import _matched
from papers.constellations.methods import compared
from papers.listing import EXPERIMENTS


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(constellations, "TRAINING_IMAGES", 20)
    monkeypatch.setattr(constellations, "NOISES", (0.0,))
    # Twenty starts take ten times as long as two, by the same code.
    infer, explain = presets.infer_constellations, ConstellationCapsNet.explain
    monkeypatch.setattr(
        presets, "infer_constellations", lambda *args, **given: infer(*args, **{**given, "restarts": 2})
    )
    monkeypatch.setattr(
        ConstellationCapsNet, "explain", lambda *args, **given: explain(*args, **{**given, "starts": 2})
    )
    return lambda **more: EXPERIMENTS["constellations"].run(Settings(tmp_path, say=lambda line: None, **more))


@pytest.mark.long
def test_tables_and_pictures(run, tmp_path):
    found = run(images=16, epochs=4)
    tables = found["tables"]
    titles = ["Noise 0", "Noise 0, 2 points of clutter"]
    assert list(tables) == [*titles, "Reported"]
    for title in titles:
        rows = {row["inference"]: row for row in tables[title]}
        assert list(rows) == list(compared(ConstellationCapsNet(*make_templates())))
        for row in rows.values():
            assert 0 < row["SA"] <= 1 and -0.5 < row["ARI"] <= 1 and 0 <= row["VI"] < math.log(13)
            assert all(math.isfinite(row[f"{metric} error"]) for metric in ("SA", "ARI", "VI"))
    best, one = (
        next(row for row in tables["Noise 0"] if row["inference"] == name)
        for name in ("doubly stochastic, annealed, 20 starts", "all points in one object")
    )
    assert next(row for row in tables["Noise 0"] if row["inference"] == "RANSAC")["SA"] == 1
    assert best["SA"] > one["SA"] + 0.1 and best["VI"] < one["VI"]
    assert [(row["noise"], row["seed"]) for row in found["learned"]] == [(0.0, 0)]
    for name in found["pictures"]:
        with Image.open(tmp_path / name) as picture:
            assert picture.size[0] > 600 and picture.size[1] > 300


def test_one_object_and_chance_score_what_they_must():
    data = make_constellations(400, torch.Generator().manual_seed(0))
    methods = compared(ConstellationCapsNet(*make_templates()))
    scores = {
        name: constellations._scores(methods[name](data, 0, torch.Generator().manual_seed(1)), data).mean(0)
        for name in ("all points in one object", "labels at random")
    }
    # Of seven sets of objects, three have one object: one group is right there. The others have 7, 8 (4 + 4) or 11.
    shares = [(4,), (3,), (4,), (4, 3), (3, 4), (4, 4), (4, 3, 4)]
    entropies = [-sum(n / sum(s) * math.log(n / sum(s)) for n in s) for s in shares]
    one = scores["all points in one object"]
    assert one[2].item() == pytest.approx(sum(entropies) / 7, abs=0.05)
    assert one[1].item() == pytest.approx(3 / 7, abs=0.06)
    assert abs(scores["labels at random"][1].item()) < 0.05


def test_labels_are_matched_to_fit():
    truth = torch.tensor([0, 0, 1, 1, 2, 3])
    assert _matched(torch.tensor([2, 2, 0, 0, 1, 3]), truth).equal(truth)
    assert _matched(torch.tensor([1, 1, 1, 0, 2, 3]), truth).tolist() == [0, 0, 0, 1, 2, 3]


def test_too_few_images(run):
    with pytest.raises(UsageError, match="images is 1"):
        run(images=1)
