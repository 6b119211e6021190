"""The pictures of a run: ticks that people can read, and the truth beside a wrong answer."""

import pytest
import torch

from mereo.data import ImageSet
from mereo.inference.evaluate import normalise, prepare_batch
from mereo.models import create_model
from mereo.tasks import Classification
from mereo.tasks import pictures as grid
from mereo.training import report
from mereo.training.report import draw_curves


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, each with its ticks settled."""
    found = []

    def keep(figure, path):
        figure.draw_without_rendering()
        found.append(figure)

    for module in (report, grid):
        monkeypatch.setattr(module, "save_figure", keep)
    return found


def ticks(axis):
    low, high = sorted(axis.get_view_interval())
    pairs = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in pairs if low <= place <= high]


@pytest.mark.parametrize(
    ("losses", "epochs", "told"),
    [
        ([0.68], ["1"], {"0.5", "1"}),
        ([0.7, 0.65, 0.62], ["1", "2", "3"], {"0.62", "0.7"}),
        ([3000.0, 40.0, 0.03], ["1", "2", "3"], {"0.05", "2,000"}),
    ],
)
def test_curves_have_plain_ticks(drawn, tmp_path, losses, epochs, told):
    history = [
        {"epoch": n, "train_loss": loss, "val_loss": loss, "train_accuracy": 0.5, "val_accuracy": None}
        for n, loss in enumerate(losses, start=1)
    ]
    draw_curves(history, tmp_path / "curves.png")
    (figure,) = drawn
    left, right = figure.axes
    assert ticks(left.xaxis) == ticks(right.xaxis) == epochs
    assert told <= set(ticks(left.yaxis))
    assert all(not label.get_text() for label in left.yaxis.get_ticklabels(minor=True))


def test_a_wrong_answer_stands_beside_the_truth(drawn, tmp_path):
    torch.manual_seed(0)
    model = create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=3)
    images, labels = torch.randint(0, 256, (9, 1, 16, 16), dtype=torch.uint8), torch.arange(9) % 3
    test = ImageSet(images, labels, ("cat", "dog", "owl"))
    cfg, batch = model.pretrained_cfg, test.batch(torch.arange(9))
    Classification(test.class_names).draw(model.eval(), batch, prepare_batch(batch, cfg), tmp_path / "samples.png")
    predicted = model(normalise(batch.images, cfg["mean"], cfg["std"])).argmax(1).tolist()
    (figure,) = drawn
    titles = [text.get_text() for text in figure.axes[0].texts]
    names = test.class_names
    assert predicted != labels.tolist()
    assert titles == [
        names[s] if s == t else f"predicted {names[s]},\nis {names[t]}"
        for s, t in zip(predicted, labels.tolist(), strict=True)
    ]
