"""Detection of images that are unlike the training images."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from PIL import Image

from mereo.cli.weights import warn_if_out_of_distribution
from mereo.data.image_statistics import ImageStatistics, StatisticsRanges
from mereo.errors import UsageError
from mereo.inference.out_of_distribution import describe_out_of_distribution, known_statistics, out_of_distribution
from mereo.models import VisionModel, create_model
from pictures import picture

COLOUR = StatisticsRanges(sides=(100, 120), colour=(0.1, 0.4), brightness=(0.3, 0.6))
GREY = StatisticsRanges(sides=(28, 28), colour=(0.0, 0.0), brightness=(0.1, 0.2))


@pytest.mark.parametrize(
    ("ranges", "statistics", "fact"),
    [
        (COLOUR, ImageStatistics(100, 300, 0.2, 0.5), None),
        (COLOUR, ImageStatistics(480, 640, 0.2, 0.5), None),
        (COLOUR, ImageStatistics(4000, 3000, 0.2, 0.5), "4000 x 3000 pixels"),
        (COLOUR, ImageStatistics(20, 20, 0.2, 0.5), "20 x 20"),
        (COLOUR, ImageStatistics(100, 100, 0.0, 0.5), "grey"),
        (COLOUR, ImageStatistics(100, 100, 0.2, 0.95), "brighter"),
        (COLOUR, ImageStatistics(100, 100, 0.2, 0.0), None),
        (GREY, ImageStatistics(28, 28, 0.01, 0.15), None),
        (GREY, ImageStatistics(28, 28, 0.2, 0.15), "in colour"),
        (GREY, ImageStatistics(28, 28, 0.0, 0.9), "brighter"),
        (StatisticsRanges(), ImageStatistics(1, 1, 0.9, 0.9), None),
    ],
)
def test_reasons(ranges: StatisticsRanges, statistics: ImageStatistics, fact: str | None) -> None:
    reasons = ranges.differences(statistics)
    assert (not reasons) if fact is None else any(fact in reason for reason in reasons)


def test_ranges_survive_a_file_of_weights() -> None:
    assert StatisticsRanges.from_dict(COLOUR.to_dict()) == COLOUR
    colour = StatisticsRanges(colour=(0.0, 1.0))
    assert StatisticsRanges.from_dict(colour.to_dict()) == colour
    for wrong in (None, 3, {"sides": "big"}, {"sides": [1, 2, 3]}, {"sides": [1, None], "else": [1, 2]}):
        assert StatisticsRanges.from_dict(wrong) == StatisticsRanges()


def network(metadata: Mapping[str, Any]) -> VisionModel:
    model = create_model("mspcaps_tiny", in_chans=1, img_size=16, channels=(4, 8, 8))
    model.metadata = MappingProxyType(dict(metadata))
    return model


def test_files_are_compared(tmp_path: Path) -> None:
    model = network({"data": "mnist"})
    assert known_statistics(model) == StatisticsRanges(sides=(28, 28), colour=(0.0, 0.0))
    grey, photo, broken = tmp_path / "grey.png", tmp_path / "photo.png", tmp_path / "broken.png"
    picture(1, (28, 28), 1).save(grey)
    Image.new("RGB", (400, 300), (250, 20, 20)).save(photo)
    broken.write_text("no image")
    assert describe_out_of_distribution(model, [grey, broken]) is None
    assert list(out_of_distribution(model, [grey, photo])) == [photo]
    line = describe_out_of_distribution(model, [grey, photo])
    assert line is not None and "1 of 2" in line and "300 x 400" in line and "in colour" in line


def test_a_run_that_was_only_the_newest_is_refused_for_other_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network({"image_statistics": GREY.to_dict()})
    photo = tmp_path / "photo.png"
    Image.new("RGB", (400, 300), (250, 20, 20)).save(photo)
    with pytest.raises(UsageError, match="--weights runs/digits"):
        warn_if_out_of_distribution(model, Path("runs/digits"), [photo], chosen=True)
    warn_if_out_of_distribution(model, Path("runs/digits"), [photo], chosen=False)
    assert "runs/digits" in capsys.readouterr().err
    warn_if_out_of_distribution(model, Path("mspcaps_tiny.mnist"), [photo], chosen=True)


def test_a_file_of_one_view_is_no_pair(tmp_path: Path) -> None:
    model = create_model("efficient_capsnet_smallnorb")
    for name, size in (("pair", (40, 20)), ("one", (30, 30))):
        Image.new("L", size).save(tmp_path / f"{name}.png")
    unlike = out_of_distribution(model, [tmp_path / "pair.png", tmp_path / "one.png"])
    assert list(unlike) == [tmp_path / "one.png"] and "two views side by side" in unlike[tmp_path / "one.png"][0]
