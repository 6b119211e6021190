"""The pictures of trees, gradients and sweeps: there, of a readable size, and of what they are given."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mereo.errors import UsageError
from mereo.explain import draw_gradients, draw_parse_tree, draw_pose_sweep, observe, parse_trees, pose_sweeps
from mereo.explain.places import Box
from mereo.explain.trees.layout import MOST, arrange, fitting, thickness
from mereo.explain.trees.pictures import spotlight
from mereo.models import CapsuleClassifier

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]
ODD = "$\\notmath$ <b>名前\n\udcff" + "long " * 40


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=float)


@pytest.mark.long
def test_tree(drawn_model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages) -> None:
    images = some_images(drawn_model)
    drawn_model.class_names = tuple(ODD + str(c) for c in range(drawn_model.num_classes))
    first, second = (
        read(draw_parse_tree(tree, images[n], tmp_path / "new" / f"{n}.png", title=ODD))
        for n, tree in enumerate(parse_trees(observe(drawn_model, images)))
    )
    assert 300 < first.shape[0] < 2600 and 700 < first.shape[1] < 2600
    assert first.std() > 15 and not np.array_equal(first, second)
    assert not list((tmp_path / "new").glob(".*"))


def test_a_wide_tree_loses_its_weakest_votes(make: Make, tmp_path: Path, some_images: MakeImages) -> None:
    model = make("three scales")
    images = some_images(model)
    tree = parse_trees(observe(model, images), keep=20)[0]
    drawn = fitting(tree)
    assert arrange(tree).width > MOST >= arrange(drawn).width and 1 < drawn.keep < 20
    assert arrange(tree.with_votes(drawn.keep + 1)).width > MOST
    with pytest.warns(UserWarning, match="20 votes .*too many"):
        pixels = read(draw_parse_tree(tree, images[0], tmp_path / "wide.png"))
    assert pixels.shape[1] < 4200
    assert fitting(drawn) is drawn


def test_a_tree_of_dead_capsules(make: Make, tmp_path: Path) -> None:
    model = make("capsnet", init="default")
    torch.nn.init.zeros_(model.primary.conv.weight)
    torch.nn.init.zeros_(model.primary.conv.bias)
    image = torch.zeros(1, *model.image_shape)
    assert read(draw_parse_tree(parse_trees(observe(model, image))[0], image[0], tmp_path / "dead.png")).std() > 0


def test_nodes_stand_apart_and_over_their_children(model: CapsuleClassifier, some_images: MakeImages) -> None:
    tree = parse_trees(observe(model, some_images(model)), rivals=1)[0]
    places, rows, width, labels = arrange(tree)
    family = {}
    for n in range(len(tree.nodes)):
        edge = tree.above(n)
        family[n] = n if edge is None else family[edge.parent]
    by_row: dict[int, list[float]] = {}
    for n, (x, row, node) in enumerate(zip(places, rows, tree.nodes, strict=True)):
        by_row.setdefault(row, []).append(x)
        assert 0.5 <= x <= width - 0.5 and row - rows[family[n]] == node.level
    assert len(labels) == max(rows) + 1
    # Classes stand side by side, or each above all of the next.
    (_, first), (second, _) = (
        (min(own), max(own))
        for own in ([row for n, row in enumerate(rows) if family[n] == root] for root in sorted(set(family.values())))
    )
    assert second in (0, first + 1)
    assert labels[0] == labels[second] == "class"
    for row in by_row.values():
        assert row == sorted(row) and all(b - a >= 1 - 1e-9 for a, b in pairwise(row))
    for n, x in enumerate(places):
        below = [places[edge.child] for edge in tree.below(n)]
        if below:
            assert x == pytest.approx((below[0] + below[-1]) / 2)


def test_the_strongest_edge_is_the_thickest(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    tree = parse_trees(observe(model, some_images(model)))[0]
    weights = dict(zip(tree.edges, thickness(tree), strict=True))
    votes = tree.below(0)
    assert weights[votes[0]] == 1
    assert weights[votes[1]] == pytest.approx(abs(votes[1].strength / votes[0].strength))
    assert all(weight == 0 for edge, weight in weights.items() if edge.kind == "agreement")


def test_spotlight_fades_all_but_the_box() -> None:
    image = torch.zeros(1, 4, 6)
    lit = spotlight(image, Box(1, 0, 3, 2))
    assert lit[0, :2, 1:3].eq(0).all() and int(lit.gt(0.5).sum()) == 24 - 4 and image.eq(0).all()


def test_gradients_picture(drawn_model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages) -> None:
    images = some_images(drawn_model)
    pixels = read(draw_gradients(drawn_model, images, tmp_path / "g.png", titles=[ODD, "two"]))
    assert 300 < pixels.shape[0] < 1200 and 700 < pixels.shape[1] < 2000
    # Red and blue, not grey, in the last columns.
    right = pixels[:, pixels.shape[1] // 2 :]
    assert (right.max(2) - right.min(2) > 80).mean() > 0.005


def test_gradients_rows_are_capped(
    make: Make, tmp_path: Path, some_images: MakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mereo.explain.gradient_pictures.MOST_ROWS", 2)
    model = make("two scales")
    heights = [read(draw_gradients(model, some_images(model, n), tmp_path / f"{n}.png")).shape[0] for n in (2, 3)]
    assert 0 < heights[1] - heights[0] < 60
    with pytest.raises(UsageError, match="titles"):
        draw_gradients(model, some_images(model), tmp_path / "x.png", titles=["one"])


def test_sweep_picture(make: Make, tmp_path: Path, some_images: MakeImages) -> None:
    for kind in ("capsnet", "efficient"):
        model = make(kind)
        images = some_images(model)
        found = pose_sweeps(observe(model, images))
        path = tmp_path / f"{kind}.png"
        pixels = read(draw_pose_sweep(found.images[0], found.offsets, images[0], path, title=ODD, note="$x$"))
        assert 300 < pixels.shape[0] < 2400 and 700 < pixels.shape[1] < 2000 and pixels.std() > 15
    with pytest.raises(UsageError, match="one image"):
        draw_pose_sweep(found.images, found.offsets, images[0], tmp_path / "x.png")


def test_sweep_cells_stand_in_their_row_and_column(tmp_path: Path) -> None:
    """A sweep that is black but for one image shows only that image, in its cell."""
    images = torch.zeros(4, 5, 1, 16, 16)
    images[1, 3] = 1
    offsets = torch.linspace(-0.2, 0.2, 5)
    black = read(draw_pose_sweep(images * 0, offsets, torch.zeros(1, 16, 16), tmp_path / "a.png"))
    white = read(draw_pose_sweep(images, offsets, torch.zeros(1, 16, 16), tmp_path / "b.png"))
    rows, columns = np.nonzero((white - black).sum(2))
    grid_rows, grid_columns = np.nonzero(black.sum(2)[:, 300:] == 0)
    assert abs((rows.mean() - grid_rows.min()) / np.ptp(grid_rows) - 1.5 / 4) < 0.03
    assert abs((columns.mean() - 300 - grid_columns.min()) / np.ptp(grid_columns) - 3.5 / 5) < 0.03
