"""Images that do not look like the training images are pointed out."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from PIL import Image

from mereo.cli.weights import warn_of_unlike
from mereo.data.looks import Look, Looks
from mereo.errors import UsageError
from mereo.inference.unlike import describe_unlike, known_looks, unlike
from mereo.models import VisionModel, create_model
from pictures import picture

COLOUR = Looks(sides=(100, 120), colour=(0.1, 0.4), brightness=(0.3, 0.6))
GREY = Looks(sides=(28, 28), colour=(0.0, 0.0), brightness=(0.1, 0.2))


@pytest.mark.parametrize(
    ("looks", "look", "fact"),
    [
        (COLOUR, Look(100, 300, 0.2, 0.5), None),
        (COLOUR, Look(480, 640, 0.2, 0.5), None),
        (COLOUR, Look(4000, 3000, 0.2, 0.5), "4000 x 3000 pixels"),
        (COLOUR, Look(20, 20, 0.2, 0.5), "20 x 20"),
        (COLOUR, Look(100, 100, 0.0, 0.5), "grey"),
        (COLOUR, Look(100, 100, 0.2, 0.95), "brighter"),
        (COLOUR, Look(100, 100, 0.2, 0.0), None),
        (GREY, Look(28, 28, 0.01, 0.15), None),
        (GREY, Look(28, 28, 0.2, 0.15), "in colour"),
        (GREY, Look(28, 28, 0.0, 0.9), "brighter"),
        (Looks(), Look(1, 1, 0.9, 0.9), None),
    ],
)
def test_reasons(looks: Looks, look: Look, fact: str | None) -> None:
    reasons = looks.unlike(look)
    assert (not reasons) if fact is None else any(fact in reason for reason in reasons)


def test_ranges_survive_a_file_of_weights() -> None:
    assert Looks.from_dict(COLOUR.to_dict()) == COLOUR
    assert Looks.from_dict(Looks(colour=(0.0, 1.0)).to_dict()) == Looks(colour=(0.0, 1.0))
    for wrong in (None, 3, {"sides": "big"}, {"sides": [1, 2, 3]}, {"sides": [1, None], "else": [1, 2]}):
        assert Looks.from_dict(wrong) == Looks()


def network(metadata: Mapping[str, Any]) -> VisionModel:
    model = create_model("mspcaps_tiny", in_chans=1, img_size=16, channels=(4, 8, 8))
    model.metadata = MappingProxyType(dict(metadata))
    return model


def test_files_are_compared(tmp_path: Path) -> None:
    model = network({"data": "mnist"})
    assert known_looks(model) == Looks(sides=(28, 28), colour=(0.0, 0.0))
    grey, photo, broken = tmp_path / "grey.png", tmp_path / "photo.png", tmp_path / "broken.png"
    picture(1, (28, 28), 1).save(grey)
    Image.new("RGB", (400, 300), (250, 20, 20)).save(photo)
    broken.write_text("no image")
    assert describe_unlike(model, [grey, broken]) is None
    assert list(unlike(model, [grey, photo])) == [photo]
    line = describe_unlike(model, [grey, photo])
    assert line is not None and "1 of 2" in line and "300 x 400" in line and "in colour" in line


def test_a_run_that_was_only_the_newest_is_refused_for_other_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network({"looks": GREY.to_dict()})
    photo = tmp_path / "photo.png"
    Image.new("RGB", (400, 300), (250, 20, 20)).save(photo)
    with pytest.raises(UsageError, match="--weights runs/digits"):
        warn_of_unlike(model, Path("runs/digits"), [photo], chosen=True)
    warn_of_unlike(model, Path("runs/digits"), [photo], chosen=False)
    assert "runs/digits" in capsys.readouterr().err
    warn_of_unlike(model, Path("mspcaps_tiny.mnist"), [photo], chosen=True)
