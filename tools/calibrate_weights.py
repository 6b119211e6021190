"""Fit a temperature to bundled weights and keep it with them: python tools/calibrate_weights.py NAME ... [--root DATA].

Weights whose epoch was chosen on validation images are calibrated on these, given their share and the seed of the
training: `shvit_cifar.cifar10 --validation-fraction 0.04 --seed 0`. The calibration error is measured on test images.

The bundled networks of MSPCaps were trained on every training image, so no other labelled images are left than the
test split. Every second one of these fits the temperature, and the calibration error is measured on the others. A
temperature changes no prediction, so the accuracy over all test images stays.
"""

import argparse
from pathlib import Path

import torch

from mereo.data import Images, load_split
from mereo.inference.temperature import KEY, calibrate, describe_calibration
from mereo.models import VisionModel, load
from mereo.models.pretrained import pretrained_path
from mereo.training.calibrate import store_calibration

HEADING = "## Probabilities"


def images_of(model: VisionModel, root: Path | None, fraction: float | None, seed: int) -> tuple[Images, Images, str]:
    """Images that fit the temperature, others that measure its error, and words for the former."""
    results, (channels, *size) = model.metadata["results"], model.image_shape

    def split(name: str) -> Images:
        return load_split(
            str(model.metadata["data"]), name, root=root, img_size=(size[0], size[1]), in_chans=channels,
            crop_pct=model.pretrained_cfg["crop_pct"], validation_fraction=fraction or 0.0, seed=seed, download=False,
        )  # fmt: skip

    if (fraction is not None) != (results["chosen_on"] == "validation"):
        raise SystemExit(
            f"the epoch of these weights was chosen on: {results['chosen_on']}; --validation-fraction belongs to"
            " weights whose epoch was chosen on validation images, and to no others"
        )
    test = split("test")
    if fraction is None:
        every = torch.arange(len(test))
        return test.subset(every[::2]), test.subset(every[1::2]), "test images, every second one"
    if (trained := len(split("train"))) != results["train_images"]:
        raise SystemExit(
            f"--validation-fraction {fraction} leaves {trained:,} training images, and the weights were trained on"
            f" {results['train_images']:,}; give the fraction of their training"
        )
    return split("validation"), test, "validation images"


def calibrate_weights(name: str, root: Path | None, fraction: float | None = None, seed: int = 0) -> str:
    """Store the temperature in the file of weights and state it in its card; the statement."""
    path = pretrained_path(name)
    model = load(path)
    fitting, measuring, words = images_of(model, root, fraction, seed)
    fitted = calibrate(model, fitting, measuring)
    store_calibration(path, fitted)
    model.metadata = {**model.metadata, KEY: fitted.to_dict()}
    text = describe_calibration(model, words)
    assert text is not None
    card = path.with_suffix(".md")
    before, _, after = card.read_text().partition(f"{HEADING}\n")
    rest = after[after.index("\n## ") + 1 :] if after else before[before.index("## Licence") :]
    head = before if after else before[: before.index("## Licence")]
    card.write_text(f"{head}{HEADING}\n\n{text}\n\n{rest}")
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--validation-fraction", type=float)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name in given.names:
        print(name, calibrate_weights(name, given.root, given.validation_fraction, given.seed))
