"""Pointers: the loss against a loop, metrics of answers that are known, and a run from training to predictions."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch, load_splits
from mereo.data.point_files import NamedSets
from mereo.errors import UsageError
from mereo.explain.pointer_pictures import draw_pointers
from mereo.tasks import Pointers
from mereo.tasks.pointers import Pointed, sequence_loss

SQUARE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def measured(problem: str, chosen: list[list[int]], true: list[int]) -> dict[str, float]:
    count = len(chosen)
    points, lengths = SQUARE.expand(count, -1, -1), torch.full((count,), 4)
    metrics = Pointers((), {"problem": problem}).metrics()
    batch = Batch(points=points, lengths=lengths, pointers=torch.tensor([true]).expand(count, -1))
    metrics.update(Pointed(None, torch.tensor(chosen)), batch)
    return metrics.compute()


def test_the_loss_is_that_of_a_loop_and_of_equal_choices_known() -> None:
    log_shares = torch.randn(3, 4, 5).log_softmax(2)
    pointers = torch.tensor([[1, 3, 0, -1], [4, 0, -1, -1], [0, -1, -1, -1]])
    total = sum(-log_shares[b, i, c] for b in range(3) for i, c in enumerate(pointers[b].tolist()) if c >= 0)
    torch.testing.assert_close(sequence_loss(log_shares, pointers), total / 3)
    equal = torch.full((1, 3, 5), -math.log(5))
    assert sequence_loss(equal, torch.tensor([[2, 1, 0]])).item() == pytest.approx(3 * math.log(5))


def test_metrics_of_hulls() -> None:
    # Right from another corner on; the wrong way around; a corner too few; crossed; nothing at all.
    chosen = [[3, 4, 1, 2, 0], [4, 3, 2, 1, 0], [1, 2, 3, 0, 0], [1, 3, 2, 4, 0], [0, 0, 0, 0, 0]]
    found = measured("hull", chosen, [1, 2, 3, 4, 0])
    assert found == pytest.approx({"accuracy": 0.2, "area_covered": (1 + 1 + 0.5) / 3, "invalid": 0.4})
    rows = dict(Pointers((), {"problem": "hull"}).summary(found, "chosen"))
    assert "FAIL" in rows["polygons"] and "20.00 %" in rows["test accuracy"]
    assert (
        "FAIL" not in dict(Pointers((), {"problem": "hull"}).summary({**found, "invalid": 0.009}, "chosen"))["polygons"]
    )


def test_metrics_of_tours() -> None:
    chosen = [[4, 3, 2, 1, 0], [1, 3, 2, 4, 0], [1, 2, 3, 0, 0], [1, 2, 3, 3, 0]]
    found, crossed = measured("tour", chosen, [1, 2, 3, 4, 0]), 2 + 2 * 2**0.5
    expected = {
        "accuracy": 0.25,
        "tour_length": (4 + crossed) / 2,
        "over_optimum": (4 + crossed) / 8 - 1,
        "invalid": 0.5,
    }
    assert found == pytest.approx(expected)


def test_metrics_of_triangles_and_of_sequences() -> None:
    chosen = [[4, 3, 1, 3, 2, 1, 0], [1, 2, 3, 0, 0, 0, 0], [1, 2, 4, 1, 0, 0, 0]]
    found = measured("triangles", chosen, [1, 2, 3, 1, 3, 4, 0])
    assert found == pytest.approx({"accuracy": 1 / 3, "triangles_found": 3 / 6, "invalid": 1 / 3})
    assert measured("sequence", [[2, 1, 0], [1, 2, 0], [2, 1, 1]], [2, 1, 0, -1]) == pytest.approx({"accuracy": 1 / 3})


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match=r"problem.*'polygon'"):
        Pointers((), {"problem": "polygon"})
    with pytest.raises(UsageError, match="beam is 0"):
        Pointers((), {"beam": 0})
    with pytest.raises(UsageError, match="convex_hull"):
        load_splits("convex_hull", img_size=8)


def test_tours_have_those_of_2_opt_to_compare_with() -> None:
    split = load_splits("tours:least=3,most=6,train=10", length=5).test.subset(torch.arange(40))
    (reference,) = Pointers((), {"problem": "tour"}).references(split).values()
    assert reference["invalid"] == 0 and 0 <= reference["over_optimum"] < 0.02
    assert Pointers().references(split) == {}


def test_arrays_are_predicted_and_what_is_wrong_with_them_is_named() -> None:
    model = mereo.create_model("pointer_network", dim=6, context=4)
    model.metadata = {"task": "pointers", "task_options": {"problem": "tour"}}
    points = 100 * np.random.default_rng(0).random((5, 2))
    found = mereo.predict(model, [points, torch.rand(2, 4, 2)])
    assert [sorted(item.values["points"]) for item in found] == [[*range(5)], [*range(4)], [*range(4)]]
    assert "set" in str(found) and found[:2].to_dicts()[0]["points"] == found[0].values["points"]
    alone = mereo.predict(model, torch.from_numpy(points))[0]
    assert alone.values == found[0].values
    for wrong, named in (([], "list"), (np.zeros((0, 2)), r"\(0, 2\)"), (np.zeros((2, 2)), "2 times"), (3, "int")):
        with pytest.raises(UsageError, match=named):
            mereo.predict(model, wrong)
    with pytest.raises(UsageError, match="tta"):
        mereo.predict(model, points, tta=True)
    line = np.arange(4.0)[:, None] * [3, 1]
    assert sorted(mereo.predict(model, line)[0].values["points"]) == [0, 1, 2, 3]
    model.metadata = {"task": "pointers", "task_options": {"problem": "hull"}}
    for wrong, named in ((line, "set0: points are 4 on a line"), (points[:2], "set0: points are .2, 2.")):
        with pytest.raises(UsageError, match=named):
            mereo.predict(model, wrong)
    assert len(mereo.predict(model, points)) == 1


@pytest.mark.long
def test_a_file_trains_evaluates_and_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # The points of a set from left to right.
    points = np.random.default_rng(0).random((600, 3, 2))
    np.savez("sets.npz", points=points, pointers=points[..., 0].argsort(1))
    args = ["dim=16", "spread=0.5", "context=3"]
    words = ["train", "--task", "pointers", "--data", "sets.npz", "--model-args", *args, "--device", "cpu"]
    words += ["--batch-size", "16", "--lr", "0.02", "--no-tensorboard"]
    assert main([*words, "--epochs", "1", "--dry-run"]) == 0
    assert main([*words, "--epochs", "12", "--name", "run"]) == 0
    results = json.loads(Path("runs/run/results.json").read_text())
    assert results["test_best"]["accuracy"] > 0.7
    assert Path("runs/run/samples_test.png").stat().st_size and Path("runs/run/samples_train.png").stat().st_size
    assert main(["evaluate", "runs/run", "--out", "report"]) == 0
    report = json.loads(Path("report/report.json").read_text())
    assert report["models"]["run"]["metrics"]["accuracy"] == pytest.approx(results["test_best"]["accuracy"])
    rows = zip("ababab", points[:2].reshape(-1, 2), strict=True)
    Path("places.csv").write_text("set,x,y\n" + "".join(f"{name},{x},{y}\n" for name, (x, y) in rows))
    capsys.readouterr()
    assert main(["predict", "places.csv", "--weights", "runs/run", "--out", "predicted"]) == 0
    assert "places.csv" not in capsys.readouterr().err
    with Path("predicted/pointers.csv").open() as file:
        written = list(csv.DictReader(file))
    document = json.loads(Path("predicted/predictions.json").read_text())["predictions"]
    for name, prediction in zip("ab", document, strict=True):
        assert [int(row["point"]) for row in written if row["set"] == name] == prediction["points"]
    assert Path("predicted/predictions.png").stat().st_size
    capsys.readouterr()
    assert main(["explain", "places.csv", "--weights", "runs/run", "--out", "explained"]) == 0
    assert Path("explained/pointers.png").stat().st_size
    assert main(["explain", "places.csv", "--weights", "runs/run", "--only", "page"]) != 0
    assert "reads points" in capsys.readouterr().err


@pytest.mark.parametrize("attention", ["pointer", "blend", "none"])
def test_couplings_are_drawn_by_step_or_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    model = mereo.create_model("pointer_network", dim=6, context=4, attention=attention, most=5)
    model.metadata = {"task": "pointers", "task_options": {"problem": "tour"}}
    drawn: list[np.ndarray] = []
    monkeypatch.setattr("matplotlib.axes.Axes.imshow", lambda axes, shares, **given: drawn.append(np.asarray(shares)))
    sets = NamedSets(["a", "b"], [np.random.default_rng(0).random((n, 2)) for n in (3, 5)], None)
    if attention == "none":
        with pytest.raises(UsageError, match="without couplings"):
            draw_pointers(model, sets, tmp_path / "couplings.png")
        return
    draw_pointers(model, sets, tmp_path / "couplings.png")
    assert [shares.shape for shares in drawn] == [(4, 4), (6, 6)]
    for shares in drawn:
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
