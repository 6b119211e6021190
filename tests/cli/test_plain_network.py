"""A network without capsules or couplings through every command, as a user goes through them."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import mereo
from mereo.bench import Bench, Request, get_suite
from mereo.bench.cases import parse_sizes
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.explain import explain, integrated_gradients, observe, occlusion_maps
from mereo.models.weights import load_tensors
from mereo.training.config import TrainConfig
from mereo.training.plan import make_plan
from mereo.training.report import Report
from mereo.training.trainer import Trainer, train
from pictures import picture
from plain_cnn import PlainCNN, registered

CAPSULE_WORDS = ("capsule", "lengths of")


@pytest.fixture(scope="module", autouse=True)
def _registered():
    with registered():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory, _registered):
    """The folder of a finished run on the digits."""
    output = tmp_path_factory.mktemp("plain")
    words = ["--model", "plain_cnn", "--data", "digits", "--limit", "256", "--batch-size", "32", "--epochs", "2"]
    words += ["--lr", "0.01", "--no-tensorboard", "--device", "cpu", "--output", str(output), "--name", "plain"]
    assert main(["train", *words]) == 0
    return output / "plain"


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture(3, (20, 20)).save("image.png")

    def go(*words):
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return go


def says_no_capsules(text):
    return not any(word in text.lower() for word in CAPSULE_WORDS)


def test_it_is_listed_and_its_cost_is_estimated(call, monkeypatch):
    monkeypatch.setattr("mereo.training.estimate.TIMING_SECONDS", 0.01)
    code, out, _ = call("models", "plain*")
    assert code == 0 and "plain_cnn" in out and "Convolutions and a linear classifier." in out
    code, out, err = call("train", "--model", "plain_cnn", "--data", "digits", "--dry-run", "--device", "cpu")
    assert code == 0, err
    assert "parameters" in out and "G for the forward pass" in out and says_no_capsules(out)


def test_layer_decay_freezing_and_resuming(tmp_path, monkeypatch):
    config = TrainConfig().replace(
        model="plain_cnn", data="digits", limit=48, batch_size=16, epochs=2, device="cpu", tensorboard=False,
        layer_decay=0.5, freeze=("stages.0.*",), checkpoint_seconds=1e-9, output=str(tmp_path),
    )  # fmt: skip
    whole = train(config.replace(name="whole"), Report(silent=True))
    optimise, calls = Trainer.optimise, []

    def stopping(self, *arguments):
        calls.append(self.optimizer.param_groups)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return optimise(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "optimise", stopping)
        train(config.replace(name="part"), Report(silent=True))
    # The model's own groups: the classifier at the full rate, each stage below it at half the rate of the next.
    assert {group["lr_scale"] for group in calls[0]} == {1.0, 0.5, 0.25}
    resumed = train(config.replace(name="part", resume=True), Report(silent=True))
    a, b = (load_tensors(result.folder.last)[0] for result in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)
    fresh = make_plan(config).build_model(10).state_dict()
    assert torch.equal(fresh["stages.0.0.weight"], a["stages.0.0.weight"])
    assert not torch.equal(fresh["head.weight"], a["head.weight"])
    assert TrainConfig.from_yaml(whole.folder.config).loss == "cross_entropy"


def test_it_loads_as_a_vision_model_and_predicts(call, run):
    model = mereo.load(run)
    assert isinstance(model, PlainCNN) and not model.training and model.class_names[3] == "3"
    code, out, err = call("predict", "image.png", "--weights", run, "--json")
    assert code == 0, err
    (row,) = json.loads(out)["predictions"]
    assert row["class"] in model.class_names and len(row["scores"]) == 3
    code, out, _ = call("predict", "image.png", "--weights", run)
    assert code == 0 and "class and probability" in out and says_no_capsules(out)


@pytest.mark.long
def test_evaluate_measures_what_applies_and_names_the_rest(call, run, monkeypatch):
    for name, few in (("RESTARTS", 2), ("RANDOM_POINTS", 4), ("QUERIES", 5)):
        monkeypatch.setattr(f"mereo.measure.attacks.masking.{name}", few)
    monkeypatch.setattr("mereo.measure.attack_stage.is_at_chance", lambda model: False)
    words = ("--limit", "30", "--corruptions", "--equivariance", "--attack", "pgd", "--epsilon", "0.1", "--steps", "2")
    code, out, err = call("evaluate", run, *words, "--masking-images", "4")
    assert code == 0, err
    assert "not measured, plain: equivariance, because PlainCNN has no class capsules" in out
    document = json.loads(Path("evaluation/report.json").read_text())
    model = document["models"]["plain"]
    assert document["task"] == "classification" and model["calibration"].keys() == {"softmax"}
    assert model["scores"]["kind"] == "logits" and 0 <= model["scores"]["highest_correct"] <= 1
    assert {"attacks", "corruptions", "masking", "not_measured"} <= model.keys() and "equivariance" not in model
    assert "loss margin" not in [check["name"] for check in model["masking"]["checks"]]
    page = Path("evaluation/report.md").read_text()
    assert "softmax of the scores, which are logits" in page and "Lengths" not in page and "no class capsules" in page
    for line in page.splitlines():
        if line.startswith("!["):
            assert Path("evaluation", line.split("(")[1].rstrip(")")).exists(), line
    code, _, err = call("evaluate", run, "--attack", "fgsm", "--attack-loss", "margin", "--limit", "10")
    assert code == 2 and "loss is 'margin'" in err and "logits" in err


@pytest.mark.long
def test_evaluate_with_a_capsule_network(call, run):
    torch.manual_seed(0)
    capsules = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16)
    mereo.save_weights("caps.safetensors", capsules, class_names=mereo.load(run).class_names, data="digits")
    code, _, err = call("evaluate", run, "caps.safetensors", "--limit", "20", "--equivariance")
    assert code == 0, err
    models = json.loads(Path("evaluation/report.json").read_text())["models"]
    assert "equivariance" in models["caps"] and "equivariance" in models["plain"]["not_measured"]
    assert models["caps"]["calibration"].keys() == {"normalised", "softmax"}
    page = Path("evaluation/report.md").read_text()
    assert "Of plain: Confidences are the softmax" in page and "not probabilities" in page


def test_explain_writes_what_applies(call, run):
    code, _, err = call("explain", "image.png", "--weights", run, "--out", "seen")
    assert code == 0, err
    assert "no trees: PlainCNN has no couplings" in err and "no sweeps: PlainCNN has no decoder" in err
    assert {path.name for path in Path("seen").iterdir()} == {"explanation.png", "gradients.png", "trees.html"}
    page = Path("seen/trees.html").read_text()
    assert "PlainCNN has no couplings, so there is no parse tree" in page and page.count('class="case"') == 1
    with Image.open("seen/explanation.png") as image:
        assert image.width > 500 and len(image.convert("L").getcolors(1 << 16)) > 20
    code, _, err = call("explain", "image.png", "--weights", run, "--only", "trees")
    assert code == 2 and "no couplings" in err


def test_explanations_as_data(run):
    model = mereo.load(run)
    images = torch.rand(2, *model.image_shape)
    explanation = explain(model, images)
    assert explanation.kind == "logits" and explanation.maps == {} and explanation.contributions is None
    torch.testing.assert_close(explanation.scores, observe(model, images).scores)
    # By the definition: the score less the score of an image whose square has the mean colour.
    drops, grid = occlusion_maps(model, images, cells=4, window=1)
    side, mean, std = int(grid.step), *(torch.tensor(model.pretrained_cfg[k]).view(-1, 1, 1) for k in ("mean", "std"))
    hidden = images.clone()
    hidden[1, :, side : 2 * side, :side] = images[1].mean((1, 2), keepdim=True)
    with torch.no_grad():
        whole, without = (model((x - mean) / std)[1] for x in (images, hidden))
    torch.testing.assert_close(drops[1, 1, 0], (whole - without)[whole.argmax()])
    rise = explanation.scores.gather(1, explanation.predicted[:, None]).squeeze(1)
    black = explain(model, torch.zeros_like(images[:1])).scores[0][explanation.predicted]
    sums = integrated_gradients(model, images, steps=256).flatten(1).sum(1)
    torch.testing.assert_close(sums, rise - black, atol=0.05, rtol=0.02)
    with pytest.raises(UsageError, match="cells is 0"):
        occlusion_maps(model, images, cells=0)


@pytest.mark.long
def test_every_form_of_export(call, run):
    code, _, err = call("export", run, "--to", "onnx", "torch", "timm", "hub", "--limit", "20", "--out", "net")
    assert code == 0, err
    card = Path("net/README.md").read_text()
    assert says_no_capsules(card) and "logits" in card and "image-classification" in card
    images = torch.rand(2, 1, 16, 16)
    model = mereo.load(run)
    for again in (mereo.from_pretrained("net"), mereo.load("net")):
        assert isinstance(again, PlainCNN) and again.class_names == model.class_names
        torch.testing.assert_close(again(images), model(images))


@pytest.mark.long
def test_compare_ranks_it_with_a_capsule_network(call, monkeypatch):
    monkeypatch.setattr("mereo.training.compare.REPEATS", 1)
    monkeypatch.setattr("mereo.export.rows.BATCH", 2)
    small = "mspcaps_tiny:channels=[4,8,8],patch_size=2"
    words = ["--epochs", "1", "--limit", "32", "--batch-size", "16", "--warmup-epochs", "0", "--device", "cpu"]
    code, _, err = call("compare", small, "plain_cnn", *words, "--img-size", "16", "--plain", "none")
    assert code == 0, err
    rows = json.loads(Path("runs/compare-digits/comparison.json").read_text())["networks"]
    assert {row["model"] for row in rows} == {"mspcaps_tiny:channels=[4,8,8],patch_size=2", "plain_cnn"}
    assert all(row["macs"] > 0 and 0 <= row["accuracy"] <= 1 for row in rows)


@pytest.mark.long
def test_the_bench_measures_it_by_name():
    sizes = parse_sizes(("model=plain_cnn", "batch=2"))
    request = Request("models", quick=True, seconds=1e-6, threads=(1,), memory=False, sizes=sizes)
    run = Bench(get_suite("models"), request).measure()
    assert {(m.mode, m.status) for m in run.measurements} == {("forward", "ok"), ("training", "ok")}
