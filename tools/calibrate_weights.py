"""Fit a temperature to bundled weights and keep it with them: python tools/calibrate_weights.py NAME [--root DATA].

The bundled networks of MSPCaps were trained on every training image, so no other labelled images are left than those of
the test split. Every second one of these fits the temperature, and the calibration error is measured on the others. A
temperature changes no prediction, so the accuracy stays that of all test images. Weights whose epoch was chosen on
validation images of their data are treated alike, because a weight file does not say which images these were.
"""

import argparse
from pathlib import Path

import torch

from mereo.data import load_split
from mereo.inference.temperature import KEY, calibrate, describe_calibration
from mereo.models import load
from mereo.models.pretrained import pretrained_path
from mereo.training.calibrate import store_calibration

HEADING = "## Probabilities"


def calibrate_weights(name: str, root: str | None) -> str:
    """Store the temperature in the file of weights and state it in its card; the statement."""
    path = pretrained_path(name)
    model = load(path)
    _, height, width = model.image_shape
    test = load_split(
        str(model.metadata["data"]), "test", root=root, img_size=(height, width), in_chans=model.image_shape[0],
        crop_pct=model.pretrained_cfg["crop_pct"], download=False,
    )  # fmt: skip
    every = torch.arange(len(test))
    fitted = calibrate(model, test.subset(every[::2]), test.subset(every[1::2]))
    store_calibration(path, fitted)
    model.metadata = {**model.metadata, KEY: fitted.to_dict()}
    text = describe_calibration(model, "test images, every second one")
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
    given = parser.parse_args()
    for name in given.names:
        print(name, calibrate_weights(name, None if given.root is None else str(given.root)))
