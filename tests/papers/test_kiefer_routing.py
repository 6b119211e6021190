"""The experiment of the training conditions, on narrow networks and few digits."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from mereo.models import load
from papers.common.settings import Settings
from papers.kiefer_generative_capsules import kiefer_routing
from papers.kiefer_generative_capsules.sparsity import MEASURES, layer_sparsity
from papers.kiefer_generative_capsules.test_images import take_test_images
from papers.listing import EXPERIMENTS

NARROW = {"conv_channels": 8, "primary_types": 2}


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Settings for a minute's work, and the lines of progress."""
    study = kiefer_routing.KIEFER_ROUTING
    variants = {k: replace(v, model_args={**v.model_args, **NARROW}) for k, v in study.variants.items()}
    monkeypatch.setattr(kiefer_routing, "KIEFER_ROUTING", replace(study, variants=variants))
    lines: list[str] = []
    plan = {"data": "digits", "epochs": 2, "limit": 32, "batch_size": 32, "device": "cpu", "images": 20}
    return Settings(tmp_path / "kiefer_routing-digits", **plan, say=lines.append), lines


@pytest.mark.long
def test_tables_pictures_and_resuming(settings):
    settings, lines = replace(settings[0], variants=("middle_routed",), seeds=2), settings[1]
    found = EXPERIMENTS["kiefer_routing"].run(settings)
    (row,), sparsity = found["tables"].values()
    runs = [settings.folder / f"middle_routed-seed{seed}" for seed in range(2)]
    last = [json.loads((run / "results.json").read_text())["test_last"]["accuracy"] for run in runs]
    assert (row["variant"], row["seeds"], row["paper %"]) == ("middle_routed", 2, None)
    assert row["test %"] == pytest.approx(50 * sum(last))
    losses = found["train_loss"]["middle_routed"]
    assert [len(of_a_seed) for of_a_seed in losses] == [2, 2]
    assert row["train loss"] == pytest.approx((losses[0][-1] + losses[1][-1]) / 2)

    measured = [json.loads((run / "sparsity.json").read_text()) for run in runs]
    assert [(row["variant"], row["layer"]) for row in sparsity] == [
        ("middle_routed", "middle"),
        ("middle_routed", "classes"),
    ]
    for row in sparsity:
        for measure in MEASURES:
            assert row[measure] == pytest.approx(sum(m[row["layer"]][measure] for m in measured) / 2)
    with Image.open(settings.folder / "kiefer_routing.png") as picture:
        assert picture.size[0] > 800
    assert json.loads((settings.folder / "results.json").read_text()) == found

    lines.clear()
    assert EXPERIMENTS["kiefer_routing"].run(settings) == found
    assert len(lines) == 2 and all("already finished" in line for line in lines)


@pytest.mark.long
def test_sparsity_is_that_of_the_last_weights(settings):
    settings, lines = replace(settings[0], variants=("unrouted",)), settings[1]
    (row,) = list(EXPERIMENTS["kiefer_routing"].run(settings)["tables"].values())[1]
    model = load(settings.folder / "unrouted-seed0" / "weights" / "last.safetensors")
    batch = take_test_images(model, "digits", None, 20, "cpu")
    assert len(batch.labels) == 20 and batch.labels.bincount().tolist() == [2] * 10
    expected = layer_sparsity(model, batch.images)["classes"]
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    lines.clear()
    found = EXPERIMENTS["kiefer_routing"].run(replace(settings, images=10))
    assert "Sparsity on 10 test images" in found["tables"] and "unrouted-seed0: measuring sparsity" in lines
