"""Pickles run what they hold when they are opened. None is opened, whatever it is called and wherever it lies."""

import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

import mereo
from mereo.errors import MereoError, UsageError

RAN = "the_pickle_ran"


class Harm:
    """When it is unpickled, it makes a folder."""

    def __reduce__(self):
        return os.mkdir, (RAN,)


def plain(path: Path) -> None:
    path.write_bytes(pickle.dumps({"state_dict": Harm()}))


def by_torch(path: Path) -> None:
    torch.save({"state_dict": {"head.weight": torch.zeros(3)}, "harm": Harm()}, path)


def by_old_torch(path: Path) -> None:
    torch.save({"harm": Harm()}, path, _use_new_zipfile_serialization=False)


FORMS = {"pickle": plain, "torch": by_torch, "old torch": by_old_torch}


@pytest.fixture(autouse=True)
def _nothing_ran():
    yield
    assert not Path(RAN).exists(), "a pickle was opened, and ran"


@pytest.mark.parametrize("form", FORMS)
def test_each_of_these_would_run_if_it_were_opened(form):
    FORMS[form](Path("harm"))
    if form == "pickle":
        pickle.loads(Path("harm").read_bytes())
    else:
        torch.load("harm", weights_only=False)
    Path(RAN).rmdir()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt", "pytorch_model.bin", "checkpoint"])
def test_a_pickle_is_refused_by_its_content(form, name):
    FORMS[form](Path(name))
    with pytest.raises(UsageError, match=r"Pickled checkpoints .*are not opened"):
        mereo.load(name)


@pytest.mark.parametrize("form", FORMS)
def test_no_command_opens_one(call, train_words, weights, form):
    folder = Path("runs/run")
    (folder / "weights").mkdir(parents=True)
    harm = folder / "weights" / "best.safetensors"
    FORMS[form](harm)
    Path("photo.png").write_bytes(harm.read_bytes())
    for words in (
        ["predict", "photo.png", "--weights", harm], ["explain", "photo.png", "--weights", folder],
        ["evaluate", folder], ["export", folder], [*train_words, "--weights", harm],
    ):  # fmt: skip
        assert call(*words).check(words).code == 2
    assert call("predict", "photo.png", "--weights", weights).check().code == 1


def test_a_run_does_not_go_on_from_one(call, train_words):
    words = [*train_words, "--epochs", "1", "--name", "run", "--no-tensorboard"]
    assert call(*words).code == 0
    by_torch(Path("runs/run/state.safetensors"))
    assert call(*words, "--resume").check().code == 2


def test_an_exported_folder_with_one_is_refused(call, weights):
    assert call("export", weights, "--out", "network", "--limit", "10").code == 0
    shutil.move("network/model.safetensors", "safe")
    by_torch(Path("network/pytorch_model.bin"))
    with pytest.raises(UsageError, match=r"Pickled weights \(pytorch_model\.bin\) are not opened"):
        mereo.from_pretrained("network")
    by_torch(Path("network/model.safetensors"))
    with pytest.raises(UsageError, match=r"Pickled checkpoints .*are not opened"):
        mereo.from_pretrained("network")


TAGS = [
    f"!!python/object/apply:os.mkdir [{RAN}]", f"!!python/object/new:os.mkdir [{RAN}]",
    f"!!python/object/apply:subprocess.run [[mkdir, {RAN}]]", f"!!python/name:os.mkdir {RAN}",
]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
def test_a_configuration_makes_no_objects(call, train_words, tag):
    Path("config.yaml").write_text(f"model: mspcaps_tiny\nmodel_args: {tag}\n")
    assert call("train", "config.yaml").check().code == 2
    assert call(*train_words, "--model-args", f"depth={tag}").check().code == 2
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(tag)


def test_pickles_of_a_data_set_run_nothing(call, train_words, monkeypatch):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("socket.getaddrinfo", no_network)
    folder = Path("data/cifar-10-batches-py")
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
        plain(folder / name)
    done = call(*train_words, "--data", "cifar10").check()
    assert done.code == 1 and "cifar10 cannot be read" in done.err


def test_an_archive_of_pickles_holds_no_images():
    plain(Path("harm.pkl"))
    with zipfile.ZipFile("images.zip", "w") as archive:
        for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
            archive.write("harm.pkl", f"{place}/0.png")
    with pytest.raises(MereoError, match="could not be read as images"):
        mereo.data.load_splits("images.zip", img_size=8, validation_fraction=0)
