"""The outputs of a network for a split; the network is left as it was."""

import pytest
import torch

import mereo
from mereo.data import ImageSet, OverlaidPairs
from mereo.errors import MereoError, UsageError
from mereo.inference.answers import check_one_label, collect_answers
from mereo.inference.evaluate import Scores, evaluate, normalise
from mereo.inference.mode import evaluating
from mereo.tasks.classification import accuracy_figures


@pytest.fixture
def model():
    torch.manual_seed(0)
    return mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=3)


@pytest.fixture
def split():
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (7, 1, 16, 16), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.tensor([0, 1, 2, 0, 1, 2, 0]), ("a", "b", "c"))


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_answers_do_not_depend_on_the_batch(model, split, batch_size):
    answers = collect_answers(model, split, batch_size=batch_size)
    images = split.batch(torch.arange(7)).images
    cfg = model.pretrained_cfg
    with torch.no_grad():
        expected = model.eval()(normalise(images, cfg["mean"], cfg["std"]))
    torch.testing.assert_close(answers.scores, expected)
    assert answers.accuracy == evaluate(model, split).accuracy
    assert answers.labels.tolist() == split.labels.tolist()


def test_an_evaluated_model_is_as_before(model, split):
    model.train()
    model.head.eval()
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    modes = [m.training for m in model.modules()]
    collect_answers(model, split)
    evaluate(model, split)
    assert [m.training for m in model.modules()] == modes and not model.head.training
    assert [p.requires_grad for p in model.parameters()].count(False) == 1 and not frozen.requires_grad
    with pytest.raises(RuntimeError, match="inside"), evaluating(model):
        assert not any(m.training for m in model.modules())
        assert not any(p.requires_grad for p in model.parameters())
        raise RuntimeError("inside")
    assert [m.training for m in model.modules()] == modes
    assert sum(p.requires_grad for p in model.parameters()) == len(list(model.parameters())) - 1


def test_bad_weights_are_refused(model, split):
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(MereoError, match="image 0"):
        collect_answers(model, split)
    with pytest.raises(MereoError, match="7 of 7 images are not finite"):
        evaluate(model.train(), split)
    assert all(m.training for m in model.modules())


def test_an_image_of_several_objects_is_correct_when_all_are_predicted(split):
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=24, num_classes=3)
    pairs = OverlaidPairs(split)
    answers = collect_answers(model, pairs)
    assert answers.labels.shape == (7, 2)
    columns = (answers.scores.tolist(), answers.labels.tolist(), answers.correct.tolist())
    for scores, labels, correct in zip(*columns, strict=True):
        longest = sorted(range(3), key=lambda c: -scores[c])[:2]
        assert correct == (set(longest) == set(labels))
    assert answers.accuracy == evaluate(model, pairs).accuracy
    with pytest.raises(UsageError, match="2 objects each"):
        check_one_label(pairs)


def test_no_image_is_no_accuracy(model, split):
    answers = collect_answers(model, split.subset(torch.arange(0)))
    assert answers.scores.shape == (0, 3) and answers.accuracy == 0


def test_the_interval_of_scores_is_wilsons():
    low, high = Scores(10, 0.0, accuracy_figures(8, 10)).interval
    assert (low, high) == pytest.approx((0.490162, 0.943318), abs=1e-5)
