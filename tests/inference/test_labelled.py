"""Labelled folders: duplicates, likely wrong labels, figures, files, and the command."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.cli.answers import print_summary
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.inference.duplicates import find_duplicates, fingerprints
from mereo.inference.gallery import read_shown
from mereo.inference.label_checks import confident_answers, expected_errors, likely_wrong_labels
from mereo.inference.labelled import UNKNOWN, FolderAnswers, folder_labels
from mereo.inference.temperature import KEY


def suspects_by_loops(p: torch.Tensor, labels: torch.Tensor) -> set[tuple[int, int]]:
    thresholds = {}
    for j in range(p.shape[1]):
        own = [float(p[n, j]) for n in range(len(labels)) if labels[n] == j]
        thresholds[j] = sum(own) / len(own) if own else float("inf")
    found = set()
    for n, label in enumerate(labels.tolist()):
        k = int(p[n].argmax())
        if k != label and p[n, k] >= thresholds[k]:
            found.add((n, k))
    return found


def test_likely_wrong_labels_against_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (200,), generator=generator)
    true = torch.where(torch.rand(200, generator=generator) < 0.1, (labels + 1) % 4, labels)
    scores = torch.randn(200, 4, generator=generator) + 3 * torch.eye(4)[true]
    p = scores.double().softmax(1)
    suspects = likely_wrong_labels(p, labels)
    assert {(s.place, s.suggested) for s in suspects} == suspects_by_loops(p, labels)
    assert [s.lead for s in suspects] == sorted((s.lead for s in suspects), reverse=True)
    wrong = set((true != labels).nonzero()[:, 0].tolist())
    listed = {s.place for s in suspects}
    assert len(listed & wrong) > 0.6 * len(wrong)
    assert len(listed & wrong) > 0.6 * len(listed)
    assert likely_wrong_labels(p[:0], labels[:0]) == []
    with pytest.raises(UsageError):
        likely_wrong_labels(p, labels[:3])


def test_duplicates_are_the_same_files_and_the_same_pictures() -> None:
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    again = (images[1] + 0.004 * torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    plain = torch.full((2, 3, 32, 32), 0.5)
    prints = fingerprints(torch.cat([images, again[None], plain]))
    groups = find_duplicates(["a", "b", "c", "a", "e", "f", "g"], prints)
    assert [(group.members, group.exact) for group in groups] == [((0, 3), True), ((1, 4), False)]


def answers_of(scores: list[list[float]], labels: list[int], trained: list[bool], **more: object) -> FolderAnswers:
    from pathlib import Path

    given = {"names": ("a", "b"), "kind": "logits", "temperature": 1.0, "duplicates": [], "aside": []} | more
    return FolderAnswers(
        paths=[Path(f"{n}.png") for n in range(len(labels))], scores=torch.tensor(scores),
        labels=torch.tensor(labels), trained=torch.tensor(trained), **given,
    )  # fmt: skip


def test_a_pair_of_views_is_shown_whole(tmp_path) -> None:
    left, right = np.random.default_rng(0).integers(0, 256, (2, 6, 8), dtype=np.uint8)
    Image.fromarray(np.concatenate([left, right], axis=1)).save(tmp_path / "pair.png")
    shown = read_shown(tmp_path / "pair.png", in_pairs=True)
    # The shorter side is 6, so each view is cut to its middle 6 columns, and nothing of a view is lost to the other.
    assert shown.shape == (6, 6, 3)
    assert np.array_equal(shown[..., 1], shown[..., 2]) and not np.array_equal(shown[..., 0], shown[..., 1])
    square = np.concatenate([left[:, :6], right[:, :6]], axis=1)
    Image.fromarray(square).save(tmp_path / "square.png")
    shown = read_shown(tmp_path / "square.png", in_pairs=True)
    assert np.array_equal(shown[..., 0], left[:, :6]) and np.array_equal(shown[..., 1], right[:, :6])


def test_figures_by_hand() -> None:
    answers = answers_of(
        [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 4.0]], [0, 0, 1, UNKNOWN], [True, False, False, True]
    )
    figures = answers.figures(answers.labels >= 0)
    assert (figures["count"], figures["correct"]) == (3, 1)
    assert figures["balanced_accuracy"] == pytest.approx((1 / 2 + 0) / 2)
    assert figures["accuracy_low"] < 1 / 3 < figures["accuracy_high"]
    assert answers.errors == [2, 1]
    assert answers.figures(~answers.trained)["count"] == 2
    assert set(answers.confusions) == {("a", "b", 1), ("b", "a", 1)}


def test_a_network_that_guesses_suspects_no_label() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (60,), generator=generator)
    guesses = torch.randn(60, 2, generator=generator)
    knows = 6 * torch.eye(2)[labels] + guesses
    assert likely_wrong_labels(guesses.double().softmax(1), labels)
    assert answers_of(guesses.tolist(), labels.tolist(), [False] * 60, temperature=1.0).suspects == []
    labels[:3] = 1 - labels[:3]
    answers = answers_of(knows.tolist(), labels.tolist(), [False] * 60, temperature=1.0)
    assert {suspect.place for suspect in answers.suspects} == {0, 1, 2}
    assert answers.are_labels_likely_wrong and "likely wrong label: " in answers.reason(0)
    trained = answers_of(knows.tolist(), labels.tolist(), [True] * 60, temperature=1.0)
    assert trained.suspects == answers.suspects


def test_expected_errors_against_loops() -> None:
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(40, 3, generator=generator).mul(2).softmax(1)
    labels = torch.randint(0, 3, (40,), generator=generator)
    total = 0.0
    for row in p.tolist():
        k = max(range(3), key=lambda j: row[j])
        own = [q[k] for q, label in zip(p.tolist(), labels.tolist(), strict=True) if label == k]
        total += 1 - row[k] if row[k] >= sum(own) / len(own) else 0.0
    assert expected_errors(p, labels) == pytest.approx(total, rel=1e-6) and total > 1
    assert expected_errors(p[:0], labels[:0]) == 0 and confident_answers(p[:0], labels[:0]).shape == (0,)


def test_labels_that_a_poor_network_doubts_are_not_called_wrong(capsys) -> None:
    """Its labels are right and its probabilities true: drawn from them. The suspects are its own errors."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(400, 4, generator=generator).mul(1.5)
    labels = torch.multinomial(scores.softmax(1), 1, generator=generator)[:, 0]
    answers = answers_of(scores.tolist(), labels.tolist(), [False] * 400, temperature=1.0, names=tuple("abcd"))
    count = len(answers.suspects)
    assert count > 20 and answers.own_errors == pytest.approx(count, rel=0.25)
    assert not answers.are_labels_likely_wrong
    assert "wrong label or error of the network" in answers.reason(answers.suspects[0].place)
    print_summary(answers, [])
    out = capsys.readouterr().out
    assert f"to check       {count} labels" in out and "likely wrong" not in out
    assert f"the network itself is expected to be wrong in about {answers.own_errors:.0f} answers" in out


def test_without_a_temperature_each_half_is_calibrated_on_the_other() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (60,), generator=generator)
    scores = (torch.randn(60, 2, generator=generator) + torch.eye(2)[labels]) * 9
    answers = answers_of(scores.tolist(), labels.tolist(), [False] * 60, temperature=None)
    calibrated = answers.figures(answers.labels >= 0)
    assert calibrated["ece"] < calibrated["ece_uncalibrated"]
    # The label of an image takes no part in its own probabilities.
    changed = answers_of(scores.tolist(), [1 - int(labels[0]), *labels[1:].tolist()], [False] * 60, temperature=None)
    assert torch.equal(changed.probabilities[0], answers.probabilities[0])


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A network that answers by brightness, near enough, and its folder of images."""
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=2)
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    calibration = {
        "temperature": 0.1, "images": 9, "ece_before": 0.2, "ece_after": 0.1, "test_images": 0, "test_ece_before": 0.0,
        "test_ece_after": 0.0,
    }  # fmt: skip
    mereo.save_weights(path, model, class_names=("cat", "dog"), **{KEY: calibration, "augment": ["shift=1"]})
    return path


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    root = tmp_path / "pets"
    for name in ("cat", "dog", "other"):
        (root / name).mkdir(parents=True)
        for n in range(4):
            pixels = generator.integers(0, 256, (20, 24), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"={name}{n}.png")
    (root / "cat" / "copy.png").write_bytes((root / "dog" / "=dog0.png").read_bytes())
    (root / "dog" / "broken.png").write_text("no image")
    return root


def test_labels_come_from_folders_only(folder) -> None:
    paths = [folder / "cat" / "=cat0.png", folder / "other" / "=other0.png"]
    assert folder_labels([folder], paths, ("dog", "cat")).tolist() == [1, UNKNOWN]
    assert folder_labels(paths, paths, ("dog", "cat")).tolist() == [UNKNOWN, UNKNOWN]
    assert folder_labels([folder / "cat"], paths, ("dog", "cat")).tolist() == [1, UNKNOWN]
    # What is above the given folder is no label.
    assert folder_labels([folder], paths, ("cat", folder.parent.name)).tolist() == [0, UNKNOWN]


def rows_of(path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_on_a_labelled_folder(weights, folder, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(folder), "--weights", str(weights), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "predictions"
    document = json.loads((out / "predictions.json").read_text())
    figures = document["summary"]["all"]
    assert printed.startswith("accuracy")
    assert f"{100 * figures['accuracy']:.2f} %" in printed
    assert figures["count"] == 9
    rows = rows_of(out / "predictions.csv")
    assert len(rows) == 13
    wrong = [row for row in rows if row["correct"] == "no"]
    assert {row["image"] for row in rows_of(out / "errors.csv")} == {row["image"] for row in wrong}
    assert len(wrong) == figures["count"] - figures["correct"]
    assert (out / "errors.png").read_bytes().startswith(b"\x89PNG")
    aside = {row["image"].rpartition("/")[2]: row["reason"] for row in rows_of(out / "set_aside.csv")}
    assert "broken.png" in aside
    assert "other" in aside["=other0.png"]
    for file in ("errors.csv", "duplicates.csv", "set_aside.csv", "errors.png", "predictions.csv"):
        assert f"predictions/{file}" in printed
    assert "1 group ->" in printed
    assert {row["kind"] for row in rows_of(out / "duplicates.csv")} == {"same file"}
    assert {row["image"].rpartition("/")[2] for row in rows_of(out / "labels.csv")} >= {"copy.png", "=dog0.png"}
    # Again into the same folder, and with the mean over views.
    capsys.readouterr()
    assert main(["predict", str(folder), "--weights", str(weights), "--out", str(out), "--tta", "--device", "cpu"]) == 0
    assert "views          every score is the mean over 9 views of the image" in capsys.readouterr().out
    assert json.loads((out / "predictions.json").read_text())["summary"]["views"] == 9


def test_a_single_image_gets_probabilities(weights, folder, capsys) -> None:
    image = str(folder / "cat" / "=cat0.png")
    assert main(["predict", image, "--weights", str(weights), "--json", "--device", "cpu"]) == 0
    (prediction,) = json.loads(capsys.readouterr().out)["predictions"]
    assert sum(prediction["probabilities"].values()) == pytest.approx(1)
    assert list(prediction["probabilities"]) == list(prediction["scores"])


def test_foreign_files_are_not_replaced(weights, folder, tmp_path, capsys) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "errors.csv").write_text("precious")
    assert main(["predict", str(folder), "--weights", str(weights), "--out", str(out)]) == 2
    assert "errors.csv" in capsys.readouterr().err
    assert (out / "errors.csv").read_text() == "precious"
    (tmp_path / "notes.txt").write_text("precious")
    assert main(["predict", str(folder), "--weights", str(weights), "--out", str(tmp_path / "notes.txt")]) == 2
    assert "notes.txt, which is a file; give a folder" in capsys.readouterr().err
    file = str(folder / "cat" / "=cat0.png")
    assert main(["predict", file, "--weights", str(weights), "--labels", "folders"]) == 2
    assert "(cat, dog); give the folder of the images" in capsys.readouterr().err
    broken = str(folder / "dog" / "broken.png")
    assert main(["predict", broken, "--weights", str(weights)]) == 1
    assert f"error: {broken} cannot be read as an image (" in capsys.readouterr().err
    table = tmp_path / "answers.csv"
    for _ in range(2):
        assert main(["predict", str(folder), "--weights", str(weights), "--out", str(table), "--labels", "none"]) == 0
    assert len(rows_of(table)) == 13
    table.write_text("precious")
    assert main(["predict", str(folder), "--weights", str(weights), "--out", str(table)]) == 2
    assert "answers.csv" in capsys.readouterr().err
