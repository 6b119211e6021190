"""bfloat16 and int8: what is rounded, what stays, and what it costs."""

import pytest
import torch

import mereo
from mereo.export import export_model, lower
from mereo.export.cost import evaluate_scorer, measure
from mereo.export.images import read_images
from mereo.export.programs import IntegerWeight, scorer
from mereo.inference.evaluate import evaluate


def test_an_integer_weight_by_hand():
    weight = torch.tensor([[1.27, -0.634], [0.0, 0.0], [-2.54, 0.011]])
    quantised, scale = IntegerWeight().right_inverse(weight)
    assert quantised.dtype == torch.int8 and quantised.tolist() == [[127, -63], [0, 0], [-127, 1]]
    torch.testing.assert_close(scale, torch.tensor([[0.01], [1e-12 / 127], [0.02]]))
    torch.testing.assert_close(IntegerWeight()(quantised, scale), torch.tensor([[1.27, -0.63], [0, 0], [-2.54, 0.02]]))


@pytest.mark.parametrize("name", ["mspcaps_tiny", "capsnet", "efficient_capsnet"])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_lowering_is_close_and_leaves_the_network_unchanged(make, images, name, precision):
    model = make(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    lowered = lower(model, precision)
    scores = lowered(images(model))
    assert scores.dtype == torch.float32 and 0 < (scores - model(images(model))).abs().max() < 0.05
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert all(p.requires_grad for p in model.parameters())
    kinds = {p.dtype for p in lowered.parameters()}
    assert (torch.bfloat16 if precision == "bf16" else torch.int8) in kinds


def test_float32_is_the_network_itself(make):
    model = make("capsnet")
    assert lower(model, "fp32") is model


def test_judging_agrees_with_evaluate(run):
    model = mereo.load(run)
    images = read_images(model, "digits", None, None)
    expected = evaluate(model, images.test)
    found = evaluate_scorer(scorer(model), images.test, model.pretrained_cfg, 100)
    assert (found.count, found.accuracy) == (359, expected.accuracy)


@pytest.mark.long
def test_integer_files_are_smaller_and_still_right(run, tmp_path):
    onnx = pytest.importorskip("onnx")
    model = mereo.load(run)
    images = read_images(model, "digits", None, 120)
    quiet = {"images": images, "say": lambda line: None}
    whole = export_model(model, ["onnx", "torch"], tmp_path, **quiet)
    small = export_model(model, ["onnx", "torch"], tmp_path, precision="int8", **quiet)
    half = export_model(model, ["torch"], tmp_path, precision="bf16", **quiet)
    assert {p.name for p in tmp_path.iterdir()} == {
        "model.onnx", "model.pt2", "model.int8.onnx", "model.int8.pt2", "model.bf16.pt2",
    }  # fmt: skip
    # In a network as narrow as this, the graph of an ONNX file takes more than its weights.
    assert max(small[1].size, half[0].size) < whole[1].size
    kinds = {tensor.data_type for tensor in onnx.load(small[0].path).graph.initializer if len(tensor.dims) == 4}
    assert onnx.TensorProto.INT8 in kinds
    runners = {"before": (scorer(model), 1)}
    runners |= {f"{each.form} {each.precision}": (each.score, each.size) for each in (*small, *half)}
    costs = measure(runners, images.test, model.pretrained_cfg, 40)
    assert [c.runner for c in costs] == ["before", "onnx int8", "torch int8", "torch bf16"]
    before = costs[0].scores.accuracy
    assert before > 0.5, "or the comparison proves nothing"
    assert all(c.scores.count == 120 and c.rate > 0 and abs(c.scores.accuracy - before) < 0.1 for c in costs)
