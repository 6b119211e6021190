"""Attribute embedding: loss and metrics against loops, unknown values, files of a gallery, a training of sprites."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import mereo
from mereo.data import Batch, load_splits
from mereo.data.layout_options import LayoutOptions
from mereo.errors import UsageError
from mereo.tasks import AttributeEmbedding
from mereo.tasks.attribute_embedding import triplet_loss
from mereo.tasks.base import Seen
from mereo.tasks.embedding import retrieval

NAMES = ("shape", "colour")


def some(count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of length one, and a value of each, two of them unknown."""
    torch.manual_seed(0)
    values = torch.arange(count) % 3
    values[[4, 7]] = -1
    return F.normalize(torch.randn(count, 4).double(), dim=1), values


def triplets(values: torch.Tensor) -> list[tuple[int, int, int]]:
    known = [i for i in range(len(values)) if values[i] >= 0]
    pairs = [(a, p) for a in known for p in known if a != p and values[a] == values[p]]
    return [(a, p, n) for a, p in pairs for n in known if values[n] != values[a]]


def test_the_loss_is_that_of_loops_and_skips_images_without_a_label() -> None:
    e, values = some()
    terms = [(0.3 - e[a] @ e[p] + e[a] @ e[n]).clamp(min=0) for a, p, n in triplets(values)]
    torch.testing.assert_close(triplet_loss(e, values, 0.3), torch.stack(terms).mean())
    nothing = e.clone().requires_grad_()
    loss = triplet_loss(nothing, torch.full((12,), -1))
    loss.backward()
    assert loss == 0 and nothing.grad is not None and nothing.grad.isfinite().all()


def test_figures_are_those_of_loops() -> None:
    e, values = some()
    right: dict[int, list[bool]] = {}
    for a, p, n in triplets(values):
        right.setdefault(a, []).append(bool(e[a] @ e[p] > e[a] @ e[n]))
    precisions = []
    for a in right:
        order = sorted((j for j in range(12) if j != a and values[j] >= 0), key=lambda j, a=a: -float(e[a] @ e[j]))
        ranks = [rank for rank, j in enumerate(order, 1) if values[j] == values[a]]
        precisions.append(sum((n + 1) / rank for n, rank in enumerate(ranks)) / len(ranks))
    known = values >= 0
    found = retrieval(e[known], values[known])
    assert found["triplet_accuracy"] == pytest.approx(sum(sum(x) / len(x) for x in right.values()) / len(right))
    assert found["mean_average_precision"] == pytest.approx(sum(precisions) / len(precisions))
    alike, none = retrieval(e, torch.zeros(12, dtype=torch.int64)), retrieval(e[:0], values[:0])
    assert (alike["mean_average_precision"], alike["triplet_accuracy"]) == (1, 0) and {*none.values()} == {0}


def test_each_attribute_is_measured_under_each_condition() -> None:
    torch.manual_seed(0)
    attributes = torch.randint(2, (40, 2))
    embeddings = F.one_hot(attributes, 2).double() + 1e-3 * torch.randn(40, 2, 2)  # each condition knows its own
    metrics = AttributeEmbedding(NAMES).metrics()
    for part in (slice(0, 13), slice(13, 40)):
        metrics.update(F.normalize(embeddings[part], dim=-1), Batch(attributes=attributes[part]))
    figures = metrics.compute()
    assert figures["triplet_accuracy"] == figures["mean_average_precision"] == 1
    assert 0.3 < figures["triplet_accuracy colour under shape"] < 0.7
    own = [figures[f"triplet_accuracy {of} under {under}"] for of, under in (NAMES, NAMES[::-1])]
    assert figures["other_triplet_accuracy"] == pytest.approx(sum(own) / 2)
    assert len(AttributeEmbedding(NAMES).summary(figures, "chosen")) == 5


def test_files_of_a_gallery_name_the_nearest_images_under_each_attribute(tmp_path: Path) -> None:
    z = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.8, 0.6], [0.0, 1.0]], [[0.0, 1.0], [0.8, 0.6]]])
    files = AttributeEmbedding(NAMES).write(z, ["a", "b", "c"], tmp_path, [Seen((4, 4), (0, 0, 4, 4))] * 3)
    assert np.array_equal(np.load(tmp_path / "embeddings.npy"), z.numpy()) and len(files) == 3
    nearest = {}
    for name in NAMES:
        rows = csv.DictReader((tmp_path / f"nearest_{name}.csv").read_text().splitlines())
        nearest[name] = [row["nearest 1"] for row in rows]
    assert nearest == {"shape": ["b", "a", "b"], "colour": ["c", "c", "a"]}


def test_a_table_of_attributes_is_read_with_its_gaps(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    rows = ["image,split,shape,colour,taken by"]
    for number in range(12):
        Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8)).save(tmp_path / "images" / f"{number}.png")
        colour = "" if number == 3 else ("red", "blue")[number // 2 % 2]
        rows.append(
            f"{number}.png,{'test' if number > 8 else 'train'},{('disc', 'cross')[number % 2]},{colour},{number}"
        )
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    options = LayoutOptions(task="attribute_embedding")
    splits = load_splits(str(tmp_path), img_size=8, validation_fraction=0.0, options=options)
    assert splits.class_names == NAMES
    train, test = (split.batch(torch.arange(len(split))).attributes for split in (splits.train, splits.test))
    assert train is not None and test is not None and len(train) == 9 and (train[:, 1] == -1).sum() == 1
    assert train[:, 0].tolist() == [1, 0] * 4 + [1] and test[:, 0].tolist() == [0, 1, 0]  # values in order of words
    assert train[:, 1].tolist() == [1, 1, 0, -1, 1, 1, 0, 0, 1] and test[:, 1].tolist() == [1, 0, 0]
    with pytest.raises(UsageError, match="1 value in 'shape'"):
        (tmp_path / "labels.csv").write_text("\n".join(row.replace("disc", "cross") for row in rows) + "\n")
        load_splits(str(tmp_path), img_size=8, options=options._replace(label_column=NAMES))


@pytest.mark.long
def test_sprites_are_trained_evaluated_and_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"embed_dim": 16, "num_heads": 2, "depth": 2, "patch_size": 8}
    run = mereo.train(
        data="sprites", model="cca_tiny", model_args=small, limit=64, epochs=1, batch_size=32, device="cpu",
        tensorboard=False,
    )  # fmt: skip
    assert run.task.name == "attribute_embedding" and run.model.class_names == ("shape", "colour", "size")
    assert "triplet_accuracy size under shape" in run.test_best.values
    figures = next(iter(mereo.evaluate(run).models.values()))["metrics"]
    assert figures["average_precision size under size"] == run.test_best.values["average_precision size under size"]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UsageError, match="margin"):
        AttributeEmbedding((), {"margin": 0})
