"""A run or a weight file among images: taken as the weights, or refused with the right command."""

from pathlib import Path

import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.cli.weights import split_weights
from mereo.errors import UsageError


@pytest.fixture(autouse=True)
def _a_run_and_a_picture(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=3)
    Path("run/weights").mkdir(parents=True)
    Path("run/config.yaml").write_text("model: mspcaps_tiny\n")
    for file in ("run/weights/best.safetensors", "alone.safetensors"):
        mereo.save_weights(file, model, class_names=("a", "b", "c"))
    Image.fromarray(torch.randint(0, 256, (16, 16), dtype=torch.uint8).numpy()).save("a b.png")


@pytest.mark.parametrize("weights", ["run", "alone.safetensors", "mspcaps_tiny.mnist"])
def test_weights_before_the_images_are_the_weights(weights):
    assert split_weights((weights, "a b.png"), None, "predict") == (("a b.png",), Path(weights))
    assert split_weights(("a b.png",), Path(weights), "predict") == (("a b.png",), Path(weights))


@pytest.mark.parametrize(
    ("images", "weights", "right"),
    [
        (("run",), None, "mereo predict IMAGES --weights run"),
        (("a b.png", "run"), None, "mereo predict 'a b.png' --weights run"),
        (("run", "alone.safetensors", "a b.png"), None, "--weights run"),
        (("run", "a b.png"), Path("alone.safetensors"), "mereo predict 'a b.png' --weights alone.safetensors"),
    ],
)
def test_weights_elsewhere_are_refused_with_the_right_command(images, weights, right):
    with pytest.raises(UsageError, match="images has run, which holds trained weights") as error:
        split_weights(images, weights, "predict")
    assert right in str(error.value)


def test_the_commands_take_the_run_or_refuse_it(capsys):
    assert main(["predict", "a b.png", "--weights", "run"]) == 0
    expected = capsys.readouterr().out
    assert main(["predict", "run", "a b.png"]) == 0
    assert capsys.readouterr().out == expected
    assert main(["explain", "alone.safetensors", "a b.png", "--out", "seen.png"]) == 0
    assert Path("seen.png").is_file()
    assert main(["predict", "run"]) == main(["explain", "run"]) == 2
