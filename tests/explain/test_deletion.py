"""The deletion test: rank correlation by hand, falls against hiding one part after another, the text of pictures."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import Grid
from mereo.errors import UsageError
from mereo.explain import deletion_test, explain, hidden_scores, observe, parse_trees, rank_correlation
from mereo.explain.observation import normalised
from mereo.explain.places import Box
from mereo.models import CapsuleClassifier

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]


def test_rank_correlation_by_hand() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 4)
    others = torch.tensor([[10.0, 20.0, 30.0, 99.0], [4.0, 3.0, 2.0, 1.0], [2.0, 1.0, 4.0, 3.0], [5.0, 5.0, 5.0, 5.0]])
    # 1 - 6 * sum of squared differences / (n (n^2 - 1)) = 1 - 6 * 4 / 60 for the third row.
    assert rank_correlation(rows, others).tolist() == pytest.approx([1.0, -1.0, 0.6, 0.0])
    # Ranks 0.5, 0.5, 2 against 0, 1, 2.
    tied = rank_correlation(torch.tensor([[7.0, 7.0, 9.0]]), torch.tensor([[1.0, 2.0, 3.0]]))
    assert tied.item() == pytest.approx(3**0.5 / 2)
    with pytest.raises(UsageError):
        rank_correlation(rows, others[:2])


def test_hidden_boxes_take_the_mean_colour(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    images = some_images(model)
    boxes = [Box(0, 0, 3, 2), Box(4, 5, 9, 9)]
    scores = hidden_scores(model, images, boxes)
    assert scores.shape == (2, 2, model.num_classes)
    for n, image in enumerate(images):
        for b, box in enumerate(boxes):
            changed = image.clone()
            for channel in range(len(image)):
                changed[channel, int(box.top) : int(box.bottom), int(box.left) : int(box.right)] = image[channel].mean()
            with torch.no_grad():
                expected = model(normalised(model, changed[None]))[0]
            torch.testing.assert_close(scores[n, b], expected, atol=1e-5, rtol=1e-4)


def test_falls_and_what_is_claimed(make: Make, some_images: MakeImages) -> None:
    model = make("capsnet")
    images = some_images(model, 3)
    explanation = explain(model, images)
    tested, votes = explanation.deletion, explanation.contribution_map
    assert tested is not None
    assert votes is not None
    assert torch.equal(tested.claimed, votes.cells)
    assert tested.falls.shape == votes.cells.shape
    expected = rank_correlation(votes.cells.flatten(1), tested.falls.flatten(1))
    assert torch.equal(tested.correlation, expected)
    assert tested.heat.shape == (3, *images.shape[-2:])


def test_fine_maps_are_tested_by_squares_and_tiny_ones_not_at_all() -> None:
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=32, num_classes=3).eval()
    images, classes = torch.rand(2, 1, 32, 32), torch.tensor([0, 2])
    scores = observe(model, images).scores
    claimed = torch.rand(2, 16, 16)
    tested = deletion_test(model, images, scores, classes, claimed, Grid(16, 16, 1, 1.0, 2.0))
    assert tested is not None
    assert tested.parts == 64
    expected = claimed.unflatten(2, (8, 2)).unflatten(1, (8, 2)).mean((2, 4))
    torch.testing.assert_close(tested.claimed, expected)
    assert deletion_test(model, images, scores, classes, torch.rand(2, 1, 2), Grid(1, 2, 1, 8.0, 16.0)) is None


def test_trees_show_the_true_class_and_what_hiding_does(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    images = some_images(model)
    observation = observe(model, images)
    last = observation.scores.argsort(descending=True)[:, -1]
    trees = parse_trees(observation, true_labels=torch.tensor([int(last[0]), -1]), images=images)
    classes = [tree.nodes[root].number for tree in trees[:1] for root in tree.roots]
    assert classes == [int(observation.scores[0].argmax()), int(last[0])]
    assert [tree.true for tree in trees] == [int(last[0]), None]
    tree = trees[0]
    for root in tree.roots:
        number = tree.nodes[root].number
        for edge in tree.below(root):
            node = tree.nodes[edge.child]
            assert node.box is not None
            hidden = hidden_scores(model, images[:1], [node.box])[0, 0, number]
            assert node.effect == pytest.approx(float(observation.scores[0, number] - hidden), abs=1e-5)
    assert tree.correlation is not None
    assert -1 <= tree.correlation <= 1
    assert tree.parts >= 3
    assert all(node.effect is None for node in parse_trees(observation)[0].nodes)
    shallow = tree.with_votes(2, rivals_deep=False)
    second = shallow.roots[1]
    assert all(not shallow.below(edge.child) for edge in shallow.below(second))
    assert any(shallow.below(edge.child) for edge in shallow.below(0))
