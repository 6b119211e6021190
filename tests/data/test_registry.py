"""Registration: one call in one file makes a data set known everywhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mereo.data
from mereo.cli.doctor import data as doctor_data
from mereo.cli.lists import LISTS
from mereo.data import DATASETS, Images, ImageSet, dataset_info, load_splits, register_dataset
from mereo.data.published import array_split
from mereo.data.raw import RawDataset
from mereo.data.registry import DatasetInfo
from mereo.errors import UsageError
from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate
from mereo.training.plan import resolve


def read(root: Path, download: bool) -> RawDataset:
    labels = torch.arange(40) % 2
    split = array_split((labels * 200).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8), labels)
    return RawDataset({"train": split, "test": split.take(torch.arange(10))}, ("dark", "light"), 1)


class Doubled(ImageSet):
    """Serves every image with its label twice."""

    labels_per_image = 2

    def batch(self, indices, **options):
        batch = super().batch(indices, **options)
        return batch._replace(labels=batch.labels[:, None].expand(-1, 2))


def wrap(images: ImageSet, per_image: int) -> Images:
    return Doubled(images.images, images.labels, images.class_names)


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch) -> DatasetInfo:
    monkeypatch.setattr("mereo.data.registry.DATASETS", DATASETS)
    known = dict(DATASETS)
    yield register_dataset(
        "squares", summary="dark and light squares", source="this test", num_classes=2, in_chans=1, size=(8, 8),
        splits={"train": 40, "test": 10}, read=read, augment=("shift=1",), files=("squares.bin",), wrap=wrap,
        labels_per_image=2,
    )  # fmt: skip
    DATASETS.clear()
    DATASETS.update(known)


def test_one_call_makes_it_known_everywhere(squares: DatasetInfo, tmp_path: Path) -> None:
    splits = load_splits("squares", img_size=8)
    assert splits.train.batch(torch.arange(3)).labels.shape == (3, 2)
    assert mereo.data.list_datasets("sq*") == ["squares"]
    assert any(row["name"] == "squares" for row in LISTS["datasets"]())
    assert doctor_data(str(tmp_path))["squares"] == "not found"
    (tmp_path / "squares.bin").write_bytes(b"")
    assert doctor_data(str(tmp_path))["squares"].endswith("squares.bin")
    small = {"model": "capsnet", "device": "cpu", "model_args": {"conv_channels": 8, "primary_types": 2}}
    config = resolve(TrainConfig(**small, data="squares"))
    assert config.augment == ("shift=1",)
    assert estimate(config, measure=False).images == 36


def test_names_that_would_do_harm_are_refused(squares: DatasetInfo) -> None:
    facts = {"summary": "", "source": "", "num_classes": 2, "in_chans": 1, "size": None, "splits": {}, "read": read}
    for name, fact in (("squares", "registered already"), ("mnist", "registered already"), ("a/b", "unlike a path")):
        with pytest.raises(UsageError, match=fact):
            register_dataset(name, **facts)


def test_facts_need_neither_torch_nor_numpy() -> None:
    line = (
        "import sys; from mereo.data import DATASETS, list_datasets, register_dataset; "
        "sys.exit(' '.join(m for m in ('torch', 'numpy', 'PIL') if m in sys.modules) or 0)"
    )
    subprocess.run([sys.executable, "-c", line], check=True)


def test_no_other_room_asks_for_a_data_set_of_several_objects_by_name() -> None:
    home = Path(mereo.data.__file__).parents[1]
    asking = re.compile(r"data\w* *(==|!=|in) *[\"'(]")
    for path in home.rglob("*.py"):
        if "data" not in path.relative_to(home).parts[:1]:
            for line in path.read_text(encoding="utf-8").splitlines():
                assert not (asking.search(line) and "multimnist" in line), f"{path}: {line}"


def test_options_follow_the_name() -> None:
    plain, shifted = dataset_info("multimnist"), dataset_info("multimnist:max_shift=6")
    assert plain.options == {"max_shift": 4} and shifted.name == "multimnist:max_shift=6"
    assert dataset_info("solids").options == {"viewpoints": "all", "familiar": False, "lightings": 1}
    for data in ("multimnist:max_shift=29", "multimnist:max_shift=1.5", "multimnist:shift=6", "digits:a=1", "digits:"):
        with pytest.raises(UsageError):
            dataset_info(data)


def test_options_change_what_is_served() -> None:
    digits = ImageSet(torch.full((6, 1, 28, 28), 255, dtype=torch.uint8), torch.arange(6) % 3, tuple("abc"))
    for data, least in (("multimnist", 4), ("multimnist:max_shift=0", 0), ("multimnist:max_shift=6", 6)):
        wrap = dataset_info(data).wrap
        assert wrap is not None
        pairs = wrap(digits, 50)
        rows = pairs.batch(torch.arange(len(pairs))).targets.amax(dim=(2, 4)) > 0  # (pairs, 2, rows)
        first = rows.flatten(0, 1).int().argmax(dim=1)
        assert {int(first.min()), int(first.max())} == {max(4 - least, 0), 4 + least}
