"""The experiments that train something, as a person runs them, on a few digits."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from mereo.cli.main import main
from mereo.data import ImageSet
from mereo.errors import UsageError
from mereo.generative import GenerativeCapsNet
from mereo.inference.evaluate import normalise
from mereo.models import create_model, load
from papers.kiefer_generative_capsules.occlusion import hide
from papers.mspcaps.averaged_maps import averaged_maps
from papers.mspcaps.capsule_head import NETWORKS

FEW = ["--data", "digits", "--epochs", "1", "--limit", "128", "--images", "24"]


def reproduce(name: str, folder: Path) -> dict[str, object]:
    assert main(["reproduce", name, *FEW, "--output", str(folder)]) == 0
    found: dict[str, object] = json.loads((folder / f"{name}-digits" / "results.json").read_text())
    for picture in found["pictures"]:  # type: ignore[attr-defined]
        with Image.open(folder / f"{name}-digits" / picture) as image:
            assert min(image.size) > 200 and len(image.convert("L").getcolors() or ()) > 20
    return found


@pytest.mark.long
def test_top_down_attention_shares_parts_out(tmp_path: Path) -> None:
    found = reproduce("top_down", tmp_path)
    (rows,) = found["tables"].values()  # type: ignore[attr-defined]
    by_name = {row["assignment"]: row for row in rows}
    assert "routing" in by_name and len(by_name) == 7
    sharp, soft = by_name["beta 16, accumulated"], by_name["beta 1/sqrt(d)"]
    assert sharp["step 10"] < soft["step 10"] <= 1
    # The assignments are counted in overlays whose digits are both predicted; without one there is no number.
    assert all((row["weighted %"] is None) == (found["both_named"] == 0) for row in rows)


@pytest.mark.long
def test_parents_of_parts_are_compared(tmp_path: Path) -> None:
    found = reproduce("generative_parts", tmp_path)
    accuracy, learned = found["tables"].values()  # type: ignore[attr-defined]
    assert [row["read from"] for row in accuracy] == ["CapsNet, with labels", "parts", "parents", "parents, masked"]
    # Without a square nothing is masked.
    assert accuracy[2]["0 px %"] == accuracy[3]["0 px %"]
    assert learned[0]["value"] > 0


def test_a_square_is_grey_and_nothing_else_changes() -> None:
    images, hidden = torch.rand(2, 3, 5, 5), torch.zeros(2, 5, 5, dtype=torch.bool)
    hidden[0, 1:3, 2:4] = True
    covered = hide(images, hidden)
    assert covered[0, :, 1:3, 2:4].eq(0.5).all()
    assert torch.equal(covered.masked_fill(hidden.unsqueeze(1), 0), images.masked_fill(hidden.unsqueeze(1), 0))
    assert not GenerativeCapsNet(2, 3, 9, channels=2, types=1, child_dim=2).visible_parts(torch.ones(1, 9, 9) > 0).any()


@pytest.mark.long
def test_two_heads_are_compared_on_the_same_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = reproduce("capsule_head", tmp_path)
    (rows,) = found["tables"].values()  # type: ignore[attr-defined]
    assert [row["network"] for row in rows] == list(NETWORKS)
    assert all(0 <= row["test %"] <= 100 and 0 <= row["ECE"] <= 1 and row["ms / image"] > 0 for row in rows)
    assert [row["parameters of the head"] for row in rows[::2]] == [(16 + 32 + 64 + 1) * 10, (48 + 96 + 224 + 1) * 10]
    kept = {
        name: load(tmp_path / "capsule_head-digits" / f"{name.replace(', ', '-')}.safetensors") for name in NETWORKS
    }
    state = create_model("shvit_cifar", pretrained="cifar10", num_classes=0).state_dict()
    for name in NETWORKS[2:]:
        frozen = kept[name].backbone.model.state_dict()
        assert frozen.keys() == state.keys()
        assert all(torch.equal(tensor, state[key]) for key, tensor in frozen.items()), name

    # One network is lost: the others are not trained again, and all results are as before.
    (tmp_path / "capsule_head-digits" / "capsules-frozen.safetensors").unlink()
    capsys.readouterr()
    again = reproduce("capsule_head", tmp_path)
    assert capsys.readouterr().out.count("trained by an earlier run") == 3
    (rows_again,) = again["tables"].values()  # type: ignore[attr-defined]
    assert again["losses"] == found["losses"]
    for row, other in zip(rows, rows_again, strict=True):
        assert {**row, "ms / image": 0} == {**other, "ms / image": 0}


def test_heads_read_the_same_from_maps_averaged_over_their_patches() -> None:
    images = ImageSet(torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8), torch.arange(5) % 2, ("a", "b"))
    for head in ("linear", "capsules"):
        model = create_model("mspcaps_head", num_classes=2, backbone="resnet20", img_size=32, head=head).eval()
        maps = averaged_maps(model, images, (8, 4, 2), torch.device("cpu"), batch_size=2)
        batch = maps.subset(torch.tensor([4, 0])).batch(torch.tensor([1, 0]))
        assert batch.labels.tolist() == [0, 0] and len(maps) == 5
        cfg = model.pretrained_cfg
        expected = model(normalise(images.batch(torch.tensor([0, 4])).images, cfg["mean"], cfg["std"]))
        torch.testing.assert_close(model.forward_head(model.neck(maps.unpack(batch.images))), expected)
    with pytest.raises(UsageError, match="3 patches"):
        averaged_maps(model, images, (3, 3, 3), torch.device("cpu"))
