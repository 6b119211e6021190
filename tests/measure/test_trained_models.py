"""Which data an evaluation reads when none is given."""

from pathlib import Path

import pytest

import mereo
from mereo.errors import UsageError
from mereo.measure.trained_models import choose_data
from mereo.training.config import TrainConfig


def stated(data):
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8))
    model.metadata = {"data": data}
    return model


def test_a_run_folder_names_its_own_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    assert choose_data([stated("photos")], [TrainConfig(data="photos")], None) == "photos"
    with pytest.raises(UsageError, match=r"photos.*--data"):
        choose_data([stated("photos")], [None], None)
    with pytest.raises(UsageError, match=r"photos.*--data"):
        choose_data([stated("photos")], [TrainConfig(data="digits")], None)


@pytest.mark.parametrize("data", ["/", ".", "..", "/proc", "photos/../.."])
def test_not_even_a_run_folder_names_a_whole_disk(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--data"):
        choose_data([stated(data)], [TrainConfig(data=data)], None)
