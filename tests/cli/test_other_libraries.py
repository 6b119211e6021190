"""Networks of timm and torchvision through every command, as a user goes through them."""

import json
from pathlib import Path

import pytest
import torch

import mereo
from mereo.cli.main import main
from pictures import picture

TIMM = "timm:test_resnet"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run on the digits."""
    pytest.importorskip("timm")
    output = tmp_path_factory.mktemp("other")
    words = ["--model", TIMM, "--data", "digits", "--img-size", "32", "--limit", "64", "--batch-size", "32"]
    words += ["--epochs", "1", "--no-tensorboard", "--device", "cpu", "--output", str(output)]
    assert main(["train", *words]) == 0
    return output / "timm_test_resnet-digits"


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture(3, (20, 20)).save("image.png")

    def go(*words):
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return go


def test_it_predicts_and_is_evaluated(run, call):
    code, out, err = call("predict", "image.png", "--weights", run, "--json")
    assert code == 0, err
    assert len(json.loads(out)["predictions"][0]["scores"]) == 3
    words = ["--limit", "20", "--attack", "fgsm", "--epsilon", "0.1", "--masking-images", "0", "--device", "cpu"]
    code, out, err = call("evaluate", run, *words, "--json")
    assert code == 0, err
    assert '"fgsm"' in out


def test_it_is_explained_by_gradients(run, call):
    code, _out, err = call("explain", "image.png", "--weights", run, "--only", "picture", "gradients")
    assert code == 0, err
    assert Path("explanation/gradients.png").exists()


def test_timm_reads_what_is_exported_for_it(run, call):
    import timm

    code, _, err = call("export", run, "--to", "timm", "--out", "exported", "--limit", "10")
    assert code == 0, err
    content = json.loads(Path("exported/config.json").read_text())
    assert content["architecture"] == "test_resnet" and len(content["label_names"]) == 10
    theirs = timm.create_model("local-dir:exported", pretrained=True).eval()
    ours, images = mereo.load(run), torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(theirs(images), ours(images))
    code, _, err = call("export", run, "--to", "timm", "hub", "--out", "both")
    assert code == 2 and "folder of its own" in err


def test_it_is_exported_as_a_folder_of_ours(run, call):
    code, _, err = call("export", run, "--to", "hub", "--out", "hub", "--limit", "10")
    assert code == 0, err
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(mereo.from_pretrained("hub")(images), mereo.load(run)(images))
    assert "local-dir" not in Path("hub/README.md").read_text()


def test_networks_of_a_library_are_listed(call):
    code, out, _ = call("models", "timm:test_res*")
    assert code == 0 and "timm:test_resnet" in out and "arguments" not in out
    code, out, _ = call("models", "torchvision:resnet18")
    assert code == 0 and "img_size" in out
    code, _, err = call("models", "timm:resnet81")
    assert code == 2 and "resnet18" in err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--model", "timm:resnet81"], "did you mean 'resnet18'"),
        (["--model", TIMM, "--weights", "timm.nobody"], "timm has not published"),
        (["--model", TIMM, "--weights", "torchvision"], "weights is 'torchvision'; it must be one of 'timm'"),
        (["--model", TIMM, "--model-args", "block=3"], "unknown argument of timm:test_resnet"),
    ],
)
def test_wrong_options(call, words, fact):
    code, _, err = call("train", *words, "--data", "digits", "--limit", "64", "--dry-run", "--img-size", "32")
    assert code == 2 and fact in err


@pytest.mark.long
def test_torchvision_goes_through_every_command(call, tmp_path):
    """Trained, continued, loaded, evaluated, explained, exported and used for predictions, with a clear line for what
    does not apply."""
    words = ["--model", "torchvision:shufflenet_v2_x0_5", "--data", "digits", "--img-size", "32", "--limit", "64"]
    words += ["--batch-size", "32", "--no-tensorboard", "--device", "cpu", "--name", "tv", "--epochs", "1"]
    assert call("train", *words)[0] == 0
    code, _, err = call("train", "--resume", *words)
    assert code == 0, err
    model = mereo.load("runs/tv")
    assert model.num_classes == 10 and model.image_shape == (1, 32, 32)
    code, out, err = call("evaluate", "runs/tv", "--limit", "20", "--equivariance")
    assert code == 0, err
    assert "has no class capsules" in out and "couplings replaced" not in out
    assert "couplings" not in json.loads(Path("evaluation/report.json").read_text())["models"]["tv"]
    assert call("predict", "image.png", "--weights", "runs/tv")[0] == 0
    code, _, err = call("explain", "image.png", "--weights", "runs/tv", "--only", "trees")
    assert code == 2 and "has no couplings" in err
    code, _, err = call("export", "runs/tv", "--to", "onnx", "hub", "--out", "net", "--limit", "10")
    assert code == 0, err
    torch.testing.assert_close(mereo.load("net")(torch.zeros(1, 1, 32, 32)), model(torch.zeros(1, 1, 32, 32)))
    code, _, err = call("export", "runs/tv", "--to", "timm", "--out", "other")
    assert code == 2 and "is a network of torchvision" in err
