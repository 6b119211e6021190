"""The state of a run as it should not be: a run resumes from a valid state, or reports what is wrong."""

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import mereo
from mereo.data import Batch
from mereo.errors import MereoError, UsageError
from mereo.models.weights import load_tensors
from mereo.tasks.classification import ClassificationObjective as Objective
from mereo.training.averaging import WeightAverage
from mereo.training.checkpoint import check_progress, load_state, save_state

ROW = {
    "epoch": 1, "lr": 0.1, "train_loss": 0.5, "train_accuracy": 0.5, "val_loss": None, "val_accuracy": None,
    "images_per_second": 9.0, "seconds": 1.0, "loading_share": 0.1,
}  # fmt: skip
PROGRESS = {
    "epoch": 1, "step": 0, "partial": [0.0, 0.0], "history": [ROW], "best": {"epoch": 1, "accuracy": None},
    "seconds": 1.0, "processes": 1,
}  # fmt: skip


def make():
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, patch_size=2)
    objective = Objective(model, "margin", 0.0)
    return objective, torch.optim.AdamW(objective.parameters(), lr=1e-3), WeightAverage(model, 0.9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The state of a network after one step."""
    objective, optimizer, average = make()
    loss, _ = objective(Batch(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]), torch.rand(2, 1, 16, 16)))
    loss.backward()
    optimizer.step()
    average.update(0)
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    save_state(path, objective, optimizer, average, PROGRESS)
    return path


def go_on(path: Path) -> dict[str, object]:
    """Take up a state and make one step from it; its progress."""
    objective, optimizer, average = make()
    progress = load_state(path, objective, optimizer, average)
    check_progress(path, progress)
    loss, _ = objective(Batch(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]), torch.rand(2, 1, 16, 16)))
    loss.backward()
    optimizer.step()
    average.update(1)
    return progress


def changed(whole, change) -> Path:
    tensors, metadata = load_tensors(whole)
    change(tensors, metadata)
    path = Path("state.safetensors")
    path.write_bytes(save(tensors, {"mereo": json.dumps(metadata)}))
    return path


def test_a_whole_state_goes_on(whole):
    assert go_on(changed(whole, lambda tensors, metadata: None)) == PROGRESS


def test_a_part_that_is_not_used_has_no_state_and_goes_on(tmp_path):
    path, images = tmp_path / "state.safetensors", torch.rand(2, 1, 16, 16)
    made = [make()[:2] for _ in range(2)]

    def step(objective, optimizer, seed):
        torch.manual_seed(seed)
        objective(Batch(images, torch.tensor([0, 1]), images))[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    for objective, optimizer in made:
        objective.model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
        optimizer.add_param_group({"params": [objective.model.unused]})
    step(*made[0], 1)
    save_state(path, *made[0], None, PROGRESS)
    load_state(path, *made[1], None)
    for each in made:
        step(*each, 2)
    (first, _), (second, _) = made
    torch.testing.assert_close(second.model.state_dict(), first.model.state_dict(), rtol=0, atol=0)
    tensors, metadata = load_tensors(path)
    metadata["optimizer"]["stateless"].clear()
    path.write_bytes(save(tensors, {"mereo": json.dumps(metadata)}))
    with pytest.raises(UsageError, match=r"state of the optimiser for model\.unused is missing"):
        load_state(path, *made[1], None)


def pop(name):
    return lambda tensors, metadata: tensors.pop(name)


def replace(name, change):
    def apply(tensors, metadata):
        tensors[name] = change(tensors[name])

    return apply


def put(*keys, value):
    def apply(tensors, metadata):
        for key in keys[:-1]:
            metadata = metadata[key]
        metadata[keys[-1]] = value

    return apply


FIRST = "optimizer/model.head.weight/exp_avg"
FAULTS = {
    "no weight": pop("model/head.weight"),
    "no average": pop("average/head.weight"),
    "a weight too many": lambda t, m: t.update({"model/more": torch.zeros(2)}),
    "a moment of nothing": lambda t, m: t.update({"optimizer/model.more/exp_avg": torch.zeros(2)}),
    "a weight of another shape": replace("model/head.weight", lambda w: w[:-1].contiguous()),
    "a moment of another shape": replace(FIRST, lambda w: w[:-1].contiguous()),
    "an average of another shape": replace("average/head.weight", lambda w: w[:-1].contiguous()),
    "a weight that is NaN": replace("model/head.weight", lambda w: w * float("nan")),
    "an average that is NaN": replace("average/head.weight", lambda w: w * float("nan")),
    "no progress": lambda t, m: m.pop("progress"),
    "no optimiser": lambda t, m: m.pop("optimizer"),
    "progress in a list": put("progress", value=[1]),
    "groups that are none": put("optimizer", "groups", value="x"),
    "no groups": put("optimizer", "groups", value=[]),
    "values that are none": put("optimizer", "values", value=[1]),
    "an epoch in words": put("progress", "epoch", value="one"),
    "an epoch too many": put("progress", "epoch", value=2),
    "a step before the first": put("progress", "step", value=-1),
    "sums that are none": put("progress", "partial", value=["a", "b"]),
    "sums that are NaN": put("progress", "partial", value=[float("nan"), 0.0]),
    "rows that are none": put("progress", "history", value=[5]),
    "rows that lack something": put("progress", "history", value=[{"epoch": 1}]),
    "rows of words": put("progress", "history", value=[{**ROW, "images_per_second": "fast"}]),
    "a best that is none": put("progress", "best", value="the first"),
    "no seconds": lambda t, m: m["progress"].pop("seconds"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_state_that_does_not_fit_is_refused(whole, fault):
    with pytest.raises(UsageError, match=r"state\.safetensors"):
        go_on(changed(whole, FAULTS[fault]))


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=100, derandomize=True, deadline=None, database=None)
def test_a_damaged_state_goes_on_or_is_refused(whole, data):
    content = bytearray(whole.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, header - 1), st.integers(0, len(content) - 1)))
        content[place] = data.draw(st.integers(0, 255))
    Path("state.safetensors").write_bytes(content[: data.draw(st.sampled_from([len(content), 0, 7, 900]))])
    try:
        go_on(Path("state.safetensors"))
    except (UsageError, MereoError) as error:
        assert "state.safetensors" in str(error) and len(str(error)) < 2000
