"""Weights that a training starts from: where they may lie, what starts anew, and what a run remembers of them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import mereo
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.models import conversion, create_model, pretrained, save_weights
from mereo.models.layout import LAYOUTS, Pair, register_layout
from mereo.models.registry import families
from mereo.models.weights import load_tensors
from mereo.surgery import linearise
from mereo.training.automatic import choose
from mereo.training.config import TrainConfig
from mereo.training.plan import resolve
from mereo.training.setup import prepare
from mereo.training.show_estimate import print_estimate
from mereo.training.trainer import Trainer, train
from plain_cnn import PlainCNN, registered

SMALL = {"channels": [4, 8, 8], "patch_size": 2}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def colours(tmp_path, monkeypatch) -> dict[str, torch.Tensor]:
    """The weights of a small network for four classes of coloured images, the only ones of the package."""
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "package")
    torch.manual_seed(5)
    model = create_model("mspcaps_tiny", num_classes=4, in_chans=3, img_size=16, **SMALL)
    model.pretrained_cfg |= {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    save_weights(tmp_path / "package" / "mspcaps_tiny.photos.safetensors", model, class_names=tuple("abcd"))
    return model.state_dict()


def test_weights_of_the_package_start_a_network_for_other_classes_and_colours(small_config, colours):
    setup = prepare(small_config(weights="mspcaps_tiny.photos", model_args={}))
    ours = setup.model.state_dict()
    assert ours["head.weight"].shape[0] == 10 and setup.model.class_names == ()
    first = f"{setup.model.first_conv}.weight"
    torch.testing.assert_close(ours[first], colours[first].sum(1, keepdim=True))
    kept = [name for name in ours if name != first and not name.startswith("head.")]
    assert kept and all(torch.equal(ours[name], colours[name]) for name in kept)
    assert "new: head" in setup.start and "in_chans 3 to 1" in setup.start
    # The network is the one that the weights are of, without being described again.
    assert setup.config.model_args == SMALL and setup.config.img_size == 16
    assert setup.config.mean == (0.5,), "the mean of three colours does not fit one"
    assert resolve(setup.config) == setup.config


def test_images_of_as_many_colours_are_normalised_as_the_weights_are_used_to(small_config, colours):
    config = resolve(small_config(weights="mspcaps_tiny.photos", model_args={}, in_chans=3))
    assert (config.mean, config.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    given = resolve(config.replace(mean=[0, 0, 0], std=[1, 1, 1]))
    assert given.mean == (0, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize("weights", ["runs/first", "runs/first/weights/best.safetensors"])
def test_a_run_and_a_file_start_a_network_and_are_found_from_elsewhere(
    small_config, silent, tmp_path, monkeypatch, weights
):
    first = train(small_config(name="first", epochs=1), silent)
    second = train(small_config(name="second", epochs=1, weights=weights), silent)
    monkeypatch.chdir("/")
    saved = TrainConfig.from_yaml(second.folder.config)
    assert saved.weights == str(tmp_path / weights)
    setup = prepare(saved)
    assert setup.start == f"starting from {tmp_path / weights}"
    assert torch.equal(setup.model.state_dict()["head.weight"], load_tensors(first.folder.best)[0]["head.weight"])


@pytest.mark.long
def test_a_run_goes_on_without_the_weights_it_started_from(small_config, silent):
    train(small_config(name="first", epochs=1), silent)
    second = train(small_config(name="second", epochs=1, weights="runs/first"), silent)
    shutil.rmtree("runs/first")
    again = train(TrainConfig.from_yaml(second.folder.config).replace(name="second", resume=True), silent)
    assert again.test_last == second.test_last
    second.folder.state.unlink()
    with pytest.raises(UsageError, match="no such file or folder"):
        train(TrainConfig.from_yaml(second.folder.config).replace(name="second", resume=True), silent)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "capsnet"}, "which belongs to mspcaps_tiny, and model is 'capsnet'; give --model mspcaps_tiny"),
        ({"model_args": {"patch_size": 4}}, "do not fit these arguments"),
        ({"weights": "mspcaps_tiny.nothing"}, "no such file or folder"),
    ],
)
def test_weights_that_do_not_fit_are_refused(small_config, colours, changes, told):
    config = small_config(**{"weights": "mspcaps_tiny.photos", "model_args": {}, **changes})
    with pytest.raises(UsageError, match=told):
        prepare(config)
    with pytest.raises(UsageError, match=told):
        print_estimate(config)
    assert not Path("runs").exists()


def test_weights_of_another_library_keep_its_size_and_name_the_new_classifier(tmp_path):
    save_weights(tmp_path / "theirs.safetensors", create_model("timm:test_resnet", num_classes=3))
    given = {
        "model": "timm:test_resnet",
        "weights": str(tmp_path / "theirs.safetensors"),
        "data": "photos",
        "epochs": 1,
    }
    for number in range(12):
        image = Image.new("RGB", (40, 40), (9 * number, 200 - 9 * number, number))
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png")
    chosen = choose(TrainConfig(**given), given)
    assert chosen.config.augment == ("zoom=0.5:1",), "parts of images of 160 pixels"
    with pytest.warns(UserWarning, match="no test split"):
        setup = prepare(chosen.plan())
    assert setup.start == f"starting from {given['weights']}; new: network.fc"


def test_the_line_is_printed_by_the_run_and_by_a_dry_run(colours, capsys):
    words = ["--weights", "mspcaps_tiny.photos", "--limit", "32", "--epochs", "1", "--device", "cpu"]
    line = "starting from mspcaps_tiny.photos; new: head; first convolution"
    assert main(["train", *words, "--dry-run"]) == 0
    assert line in capsys.readouterr().out
    assert main(["train", *words, "--no-tensorboard"]) == 0
    assert line in capsys.readouterr().out


class Published:
    """A stand-in for timm that has published weights of the plain network, under other names."""

    def __init__(self, source, missing=False):
        self.source, self.missing, self.asked = source, missing, []

    def is_model(self, name):
        return name == "plain_cnn"

    def is_model_pretrained(self, name):
        return name in ("plain_cnn", "plain_cnn.a1")

    def list_pretrained(self, pattern):
        return ["plain_cnn.a1"]

    def get_pretrained_cfg(self, name):
        return SimpleNamespace(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))

    def create_model(self, name, pretrained=False, **arguments):
        self.asked.append((name, arguments))
        if "img_size" in arguments:
            raise TypeError("unexpected img_size")
        if self.missing:
            raise OSError("no network")
        return self.source


@pytest.fixture
def published(monkeypatch):
    class Theirs(PlainCNN):
        """The plain network with other names for its stages."""

    torch.manual_seed(3)
    source = Theirs(num_classes=7)
    with registered():
        register_layout(
            "timm",
            PlainCNN,
            lambda model: [Pair("head", "head"), *(Pair(f"stages.{i}", f"stages.{i}") for i in range(3))],
            classes=("Theirs",),
            arguments=lambda source: {"num_classes": 7, "in_chans": 3},
        )
        timm = Published(source)
        monkeypatch.setattr(conversion, "import_timm", lambda: timm)
        yield timm
        LAYOUTS.pop()


def plain(small_config, **changes):
    return small_config(**{"model": "plain_cnn", "model_args": {}, "img_size": 24, "in_chans": 3, **changes})


def test_published_weights_of_timm_start_a_network_for_other_classes(small_config, published):
    setup = prepare(plain(small_config, weights="timm.a1"))
    ours, theirs = setup.model.state_dict(), published.source.state_dict()
    assert ours["head.weight"].shape[0] == 10
    kept = [name for name in ours if not name.startswith("head.")]
    assert kept and all(torch.equal(ours[name], theirs[name]) for name in kept)
    assert "timm" in setup.start and setup.start.endswith("new: head")
    assert setup.model.image_shape == (3, 24, 24)
    assert (setup.config.mean, setup.config.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert setup.config.weights == "timm.a1" and {name for name, _ in published.asked} == {"plain_cnn.a1"}
    grey = resolve(plain(small_config, weights="timm", in_chans=1))
    assert len(grey.mean) == 1


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"weights": "timm.b7"}, r"none for 'plain_cnn.b7'; it has plain_cnn.a1"),
        ({"weights": "timm", "model": "capsnet"}, "timm has no 'capsnet'"),
    ],
)
def test_weights_that_timm_does_not_have(small_config, published, changes, fact):
    with pytest.raises(UsageError, match=fact):
        resolve(plain(small_config, **changes))


def test_published_weights_without_a_network(small_config, published):
    published.missing = True
    with pytest.raises(UsageError, match=r"could not be loaded .*give their file as weights"):
        prepare(plain(small_config, weights="timm"))


def test_a_resumed_run_does_not_ask_for_published_weights_again(small_config, published, silent, monkeypatch):
    config = plain(small_config, weights="timm", name="once", epochs=1)
    first = train(config, silent)
    published.asked.clear()
    published.missing = True
    again = train(first_config(first).replace(resume=True), silent)
    assert not published.asked and again.results["test_best"] == first.results["test_best"]


def first_config(result):
    return TrainConfig.from_yaml(result.folder.config)


def test_a_file_under_the_names_of_another_library(small_config, published, tmp_path):
    save_file(published.source.state_dict(), tmp_path / "theirs.safetensors")
    setup = prepare(plain(small_config, weights="theirs.safetensors"))
    assert str(tmp_path / "theirs.safetensors") in setup.start and setup.start.endswith("new: head")
    assert torch.equal(setup.model.stages[0][0].weight, published.source.stages[0][0].weight)
    save_file({"stages.0.0.weight": torch.zeros(1)}, tmp_path / "few.safetensors")
    with pytest.raises(UsageError, match="missing"):
        prepare(plain(small_config, weights="few.safetensors"))


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "moh": lambda m: mereo.moh(m, 0.5, routing="tokens"),
    "evit": lambda m: mereo.evit(m, (0.5, 0.6), layers=(0, 1)),
    "dual": lambda m: mereo.dual_cross_attention(m, 0.5),
    "sparsifiner": lambda m: mereo.sparsifiner(m, 0.5),
    "linearise, sea": lambda m: mereo.sea(linearise(m, 2, layers=[1]), columns=4, top_k=2, layers=[0]),
    "insert": lambda m: mereo.insert(m, "multi_head", "blocks", heads=2) and m,
}
TRAIN = [
    "train", "--model", "vit_tiny_patch16_224", "--weights", "source.safetensors", "--name", "run", "--data", "digits",
    "--limit", "64", "--batch-size", "16", "--epochs", "2", "--augment", "none", "--device", "cpu", "--no-tensorboard",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATIONS)
def test_weights_of_a_network_after_surgery_are_trained_resumed_and_loaded(name, capsys, monkeypatch):
    torch.manual_seed(0)
    small = {**families()["vit"].tiny, "num_classes": 3}
    source = OPERATIONS[name](mereo.create_model("vit_tiny_patch16_224", **small))
    save_weights("source.safetensors", source)
    epoch = Trainer.train_epoch

    def stop_in_the_second(self, number, first):
        if number:
            raise KeyboardInterrupt
        return epoch(self, number, first)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_epoch", stop_in_the_second)
        assert main(TRAIN) != 0
    new = "dual, head" if name == "dual" else "head"
    assert f"source.safetensors; new: {new}; first convolution" in capsys.readouterr().out
    Path("source.safetensors").unlink()
    assert main(["train", "runs/run", "--resume"]) == 0
    config = TrainConfig.from_yaml(Path("runs/run/config.yaml"))
    assert config.model_args["surgery"] == source.config["surgery"]
    for file in ("best", "last"):
        trained = mereo.load(f"runs/run/weights/{file}.safetensors")
        assert trained.config["surgery"] == source.config["surgery"] and trained.num_classes == 10
        assert trained.state_dict().keys() == source.state_dict().keys()
        trained(torch.rand(2, *trained.image_shape))
    assert main(["evaluate", "runs/run"]) == 0


def test_weights_after_surgery_start_no_part_and_no_other_network(small_config):
    small = families()["vit"].tiny
    mereo.save_weights("vit.safetensors", mereo.moh(mereo.create_model("vit_tiny_patch16_224", **small), 0.5))
    words = {"model": "vit_tiny_patch16_224", "weights": "vit.safetensors", "model_args": {"surgery": []}}
    with pytest.raises(UsageError, match="moh"):
        prepare(small_config(**words))
    backbone = families()["shvit"].tiny
    changed = mereo.create_model("shvit_s1", **backbone)
    mereo.insert(changed, "squeeze_excite", "stages", hidden=2)
    mereo.save_weights("shvit.safetensors", changed)
    head = {"backbone": "shvit_s1"}
    with pytest.raises(UsageError, match="insert"):
        prepare(small_config(model="mspcaps_head", weights="shvit.safetensors", model_args=head))
    with pytest.raises(UsageError, match="surgery"):
        mereo.create_model("mspcaps_head", backbone="shvit_s1", backbone_args={"surgery": changed.config["surgery"]})
    with pytest.raises(UsageError, match="surgery is 'moh'"):
        mereo.create_model("vit_tiny_patch16_224", **small, surgery="moh")
