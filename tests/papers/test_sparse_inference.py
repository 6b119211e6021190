"""The experiment of sparse inference, on narrow networks, few digits and short descents."""

import pytest
from PIL import Image

from mereo.training.studies import Study, Variant, finish_runs
from papers.common.settings import Settings
from papers.common.studies import configurations
from papers.kiefer_generative_capsules import sparse_inference
from papers.listing import EXPERIMENTS

TINY = {"conv_channels": 6, "primary_types": 2, "decoder": False}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the experiment with other settings; its lines of progress are in `run.lines`."""
    variants = {
        "routed": Variant(model_args={**TINY, "routing_steps": 2}),
        "unrouted": Variant(model_args={**TINY, "routing_steps": 0}),
    }
    monkeypatch.setattr(sparse_inference, "NETWORKS", Study("", "", "capsnet_routing_study", variants))
    monkeypatch.setattr(sparse_inference, "KIEFER_ROUTING", Study("", "", "capsnet_routing_study", variants))
    monkeypatch.setattr(sparse_inference, "STEPS", 5)

    def run(**more):
        settings = Settings(tmp_path / "sparse_inference-digits", "digits", device="cpu", say=run.lines.append, **more)
        return EXPERIMENTS["sparse_inference"].run(settings)

    run.lines = []
    return run


SHORT = {"epochs": 1, "limit": 64, "batch_size": 32, "images": 4}


@pytest.mark.long
def test_tables_and_pictures(run, tmp_path):
    found = run(**SHORT)
    capsules, accuracy = (found["tables"][f"{what} 4 test images"] for what in ("Class capsules of", "Accuracy on"))
    conditions = [f"inference{how}" for how in ("", ", L1", ", L1 proximal", ", no ReLU", ", L1, no ReLU")]
    assert [row["condition"] for row in capsules] == ["forward, routed", "forward, unrouted", *conditions]
    for row in capsules[2:]:
        assert row["F last"] < row["F first"]
    assert all(row["F first"] is None for row in capsules[:2])
    # The penalty adds the length of the class capsules to the energy, and inference starts at the forward pass.
    assert capsules[3]["F first"] > capsules[2]["F first"]
    assert [row["classifier"] for row in accuracy] == [
        "forward, routed", "forward, unrouted", "ten clamped labels", "ten clamped labels, L1",
    ]  # fmt: skip
    assert accuracy[1]["%"] == pytest.approx(capsules[1]["true longest %"])
    for name in ("activity.png", "energy.png"):
        with Image.open(tmp_path / "sparse_inference-digits" / name) as picture:
            assert picture.size[0] > 600

    run.lines.clear()
    assert run(**SHORT)["tables"] == found["tables"]
    assert sum("already finished" in line for line in run.lines) == 2


@pytest.mark.long
def test_finished_runs_of_the_study_are_used(run, tmp_path):
    training = {name: value for name, value in SHORT.items() if name != "images"}
    configs = configurations(
        "kiefer_routing",
        sparse_inference.KIEFER_ROUTING,
        1,
        str(tmp_path),
        {"data": "digits", "device": "cpu", **training},
    )
    finish_runs(configs, run.lines.append)
    found = run(images=4)
    assert found["networks"]["unrouted"] == str(tmp_path / "kiefer_routing-digits" / "unrouted-seed0")
    assert not (tmp_path / "sparse_inference-digits" / "networks-digits").exists()
