"""`mereo explain` of boxes, masks and embeddings: what is explained, and the command as a person uses it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mereo
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.models import save_weights
from mereo.tasks import AttributeEmbedding, Detection, Embedding, Segmentation
from mereo.tasks.detection import detect
from mereo.tasks.explained import Others
from pictures import picture

NAMES = ("background", "disc", "square")


def test_a_box_is_explained_by_its_score() -> None:
    torch.manual_seed(0)
    task, outputs = Detection(NAMES), torch.randn(2, 30, 8, dtype=torch.float64)
    outputs[..., :2], outputs[..., 2:4] = torch.rand(2, 30, 2) / 2, 0.5 + torch.rand(2, 30, 2) / 2
    found = detect(outputs, task.options)
    for target, rows in ((None, found[:, 0]), ("box:2", found[:, 1])):
        about = task.explained(outputs, target)
        torch.testing.assert_close(about(outputs), rows[:, 4])
        torch.testing.assert_close(about.boxes, rows[:, :4])
    scores = (outputs[..., 5:].sigmoid() * outputs[..., 4:5].sigmoid()).sqrt()
    about = task.explained(outputs, "class:disc")
    torch.testing.assert_close(about(outputs), scores[..., 1].amax(1))
    assert about.words[0] == f"disc {float(scores[0, :, 1].max()):.2f}"
    # The box stays the same for other outputs.
    cells = scores[..., 1].argmax(1)
    torch.testing.assert_close(about(2 * outputs), (
        (2 * outputs[..., 6]).sigmoid() * (2 * outputs[..., 4]).sigmoid()
    ).sqrt()[torch.arange(2), cells])  # fmt: skip
    for wrong in ("box:99", "class:cat", "box:0"):
        with pytest.raises(UsageError) as refused:
            task.explained(outputs, wrong)
        assert wrong.removeprefix("class:") in str(refused.value)


def test_an_area_is_explained_by_its_mean_logit() -> None:
    torch.manual_seed(0)
    task, outputs = Segmentation(NAMES), torch.randn(3, 3, 4, 5)
    outputs[:, 0] += 1
    outputs[2, 2] = -9  # an image without a square
    predicted = outputs.argmax(1)
    for target, chosen in ((None, None), ("square", 2)):
        about = task.explained(outputs, target)
        value = about(outputs)
        for n in range(3):
            counts = [int((predicted[n] == c).sum()) for c in range(3)]
            label = max((1, 2), key=counts.__getitem__) if chosen is None else chosen
            places = [(y, x) for y in range(4) for x in range(5) if predicted[n, y, x] == label]
            assert about.masks[n].nonzero().tolist() == [list(place) for place in places]
            among = places or [(y, x) for y in range(4) for x in range(5)]
            mean = sum(float(outputs[n, label, y, x]) for y, x in among) / len(among)
            assert float(value[n]) == pytest.approx(mean, rel=1e-5)
    assert about.words[2] == "square: no pixel"


def test_an_embedding_is_explained_by_the_most_similar_image() -> None:
    torch.manual_seed(0)
    outputs, gallery = torch.randn(3, 4), F.normalize(torch.randn(5, 4), dim=1)
    similar = F.normalize(outputs, dim=1) @ gallery.T
    about = Embedding().explained(outputs, None, Others("abcde", gallery, torch.tensor([-1, 2, -1])))
    similar[1, 2] = -2  # the image itself
    torch.testing.assert_close(about(outputs), similar.amax(1))
    assert about.nearest.tolist() == similar.argmax(1).tolist()
    pairs = F.cosine_similarity(outputs[:, None], outputs[None], dim=2) - 3 * torch.eye(3)
    torch.testing.assert_close(Embedding().explained(outputs)(outputs), pairs.amax(1))
    both = torch.randn(3, 2, 4)
    by_one = AttributeEmbedding(("colour", "shape")).explained(both, "shape")
    torch.testing.assert_close(by_one(both), Embedding().explained(both[:, 1])(both[:, 1]))
    by_all = AttributeEmbedding(("colour", "shape")).explained(both)
    mean = (F.normalize(both, dim=2)[:, None] * F.normalize(both, dim=2)[None]).sum(3).mean(2) - 3 * torch.eye(3)
    torch.testing.assert_close(by_all(both), mean.amax(1))
    for others in (None, Others((), gallery[:0], torch.tensor([-1]))):
        with pytest.raises(UsageError) as refused:
            Embedding().explained(outputs[:1], None, others)
        assert "image:" in str(refused.value)


BACKBONE = {"widths": (4, 6, 8), "blocks": 1}
NETWORKS: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "detection": (
        "detector_small", {"backbone_args": BACKBONE, "img_size": 32, "dim": 8, "tower_layers": 1, "num_classes": 3},
        "class:disc", ("gradients",),
    ),
    "segmentation": (
        "unet_small", {"widths": (4, 6, 8), "num_classes": 3, "img_size": 16}, "class:square", ("page", "picture"),
    ),
    "embedding": ("embedding_resnet20", {"backbone_args": BACKBONE, "img_size": 16}, "image:other", ("picture",)),
}  # fmt: skip
"""For each task a network, its arguments, a target, and the kinds of output that are written."""


@pytest.mark.long
@pytest.mark.parametrize("task", NETWORKS)
def test_the_command(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    name, arguments, target, kinds = NETWORKS[task]
    save_weights(
        "net.safetensors",
        mereo.create_model(name, **arguments),
        class_names=NAMES if task != "embedding" else (),
        task=task,
    )
    for seed, path in enumerate(("one.png", "two.png", "other/three.png")):
        Path(path).parent.mkdir(exist_ok=True)
        picture(seed, (40, 30)).save(path)
    words = ["explain", "one.png", "two.png", "--weights", "net.safetensors", "--device", "cpu"]
    assert main([*words, "--only", *kinds, "--out", "all"]) == 0, capsys.readouterr().err
    assert len([path for path in Path("all").rglob("*.*") if path.stat().st_size]) == len(kinds)
    assert main([*words, "--target", target, "--method", "gradcam", "--out", "why.png"]) == 0
    assert Path("why.png").stat().st_size
    capsys.readouterr()
    for wrong in (["--method", "rollout"], ["--target", "class:cat"]):
        assert main([*words, *wrong]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    found = mereo.explain("net.safetensors", ["one.png", "two.png"], classes=target)
    assert found.classes == list(found[0].about.words) and found[0].value.shape == (2,)
