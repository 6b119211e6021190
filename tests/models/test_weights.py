"""Files of weights: what they carry, and files that are not, or do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.models import MODELS, CapsuleClassifier, MSPCaps
from mereo.models.registry import lay_out
from plain_cnn import registered

NARROW: dict[str, Any] = {"channels": (4, 8, 8)}


def narrow() -> CapsuleClassifier:
    model = mereo.create_model("mspcaps_tiny", **NARROW)
    assert isinstance(model, CapsuleClassifier)
    with torch.no_grad():
        model(torch.rand(4, *model.image_shape))
    return model.eval()


def some_images(model: CapsuleClassifier) -> Tensor:
    return torch.rand(3, *model.image_shape)


def test_weights_on_disk_have_the_ordinary_layout(tmp_path: Path) -> None:
    model = narrow()
    lay_out(model, torch.channels_last)  # as in training
    assert not model.blocks[1].entry[0].weight.is_contiguous()
    mereo.save_weights(tmp_path / "w.safetensors", model)
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        for name, tensor in model.state_dict().items():
            assert torch.equal(file.get_tensor(name), tensor) and file.get_tensor(name).is_contiguous()


def test_other_weights_than_the_models_own_can_be_saved(tmp_path: Path) -> None:
    model, average = narrow(), narrow()
    mereo.save_weights(tmp_path / "w.safetensors", model, state=average.state_dict())
    images = some_images(model)
    assert torch.equal(mereo.load(tmp_path / "w.safetensors")(images), average(images))


def test_the_folder_of_a_run_loads_its_best_weights(tmp_path: Path) -> None:
    model = narrow()
    mereo.save_weights(tmp_path / "weights" / "best.safetensors", model)
    assert torch.equal(mereo.load(tmp_path)(images := some_images(model)), model(images))


def test_half_precision_weights_load_as_float32(tmp_path: Path) -> None:
    model = narrow().to(torch.bfloat16)
    mereo.save_weights(tmp_path / "w.safetensors", model)
    loaded = mereo.load(tmp_path / "w.safetensors")
    assert all(torch.equal(a, b.float()) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
    assert loaded(some_images(model)).dtype == torch.float32


def test_a_model_that_create_model_did_not_make_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="create_model"):
        mereo.save_weights(tmp_path / "w.safetensors", MSPCaps(**NARROW))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    mereo.save_weights(path, narrow())
    return path


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], Any]) -> None:
    """Change the tensors and the metadata of a file of weights."""
    header = path.read_bytes()
    size = int.from_bytes(header[:8], "little")
    metadata = json.loads(json.loads(header[8 : 8 + size])["__metadata__"]["mereo"])
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, {"format": "pt", "mereo": json.dumps(metadata)})


def test_a_file_that_is_only_rewritten_stays_valid(saved: Path) -> None:
    rewrite(saved, lambda tensors, metadata: None)
    assert isinstance(mereo.load(saved), MSPCaps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: t.pop("head.weight"), "does not fit MSPCaps: missing head.weight"),
        (lambda t, m: t.update(extra=torch.zeros(1)), "unexpected extra"),
        (lambda t, m: t.update({"head.weight": torch.zeros(2, 3)}), r"head.weight is \(2, 3\), not \(10, 4, 16, 32\)"),
        (lambda t, m: t["head.weight"].view(-1)[0].fill_(torch.nan), "head.weight holds values that are not finite"),
        (lambda t, m: t["head.weight"].view(-1)[0].fill_(torch.inf), "head.weight holds values that are not finite"),
        (lambda t, m: t.update({"head.weight": t["head.weight"].long()}), "head.weight is torch.int64"),
        (lambda t, m: t.clear(), "; and [0-9]+ more"),
        (lambda t, m: m.update(format=99), "has format 99, and this version reads up to 1"),
        (lambda t, m: m.update(model="mspcaps_tin"), "did you mean 'mspcaps_tiny'"),
        (lambda t, m: m.pop("args"), "does not name its model"),
        (lambda t, m: m["args"].update(wings=2), "with 'wings', which is not an argument"),
        (lambda t, m: m["args"].update(num_classes=3), r"head.weight is \(10, .*\), not \(3, "),
    ],
)
def test_weights_that_do_not_fit(saved: Path, change: Callable[..., Any], message: str) -> None:
    rewrite(saved, change)
    with pytest.raises(UsageError, match=message):
        mereo.load(saved)


def test_files_that_are_not_weights(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    other = tmp_path / "other.safetensors"
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        other.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"other.safetensors is not a readable safetensors file"):
            mereo.load(other)
    torch.save({"weight": torch.zeros(2)}, other)
    with pytest.raises(UsageError, match=r"Pickled checkpoints .*are not opened"):
        mereo.load(other)
    save_file({"weight": torch.zeros(2)}, other)
    with pytest.raises(UsageError, match="not written by mereo"):
        mereo.load(other)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.safetensors.*no such file or folder"):
        mereo.load(tmp_path / "none.safetensors")
    with pytest.raises(UsageError, match=r"a folder without weights"):
        mereo.load(tmp_path)
    with pytest.raises(UsageError, match=r"none.safetensors is not a file"):
        mereo.create_model("mspcaps_tiny", checkpoint_path=tmp_path / "none.safetensors")


def test_a_file_of_another_architecture_does_not_load_into_a_model(saved: Path) -> None:
    with pytest.raises(UsageError, match=r"does not fit CapsNet: missing conv\.bias"):
        mereo.create_model("capsnet", **(MODELS["capsnet"].tiny or {}), checkpoint_path=saved)


def test_weights_of_a_network_without_capsules(tmp_path: Path) -> None:
    with registered():
        model = mereo.create_model("plain_cnn").eval()
        mereo.save_weights(tmp_path / "w.safetensors", model, class_names=tuple("abcde"))
        loaded = mereo.load(tmp_path / "w.safetensors")
        images = torch.rand(2, 3, 16, 16)
        assert torch.equal(loaded(images), model(images)) and loaded.class_names == tuple("abcde")
