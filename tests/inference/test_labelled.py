"""Labelled folders: duplicates, likely wrong labels, figures, files, and the command."""

import csv
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.cli.answers import print_summary
from mereo.cli.main import main
from mereo.inference.answer_report import draw_errors
from mereo.inference.clean import label_issues, picture_hashes, same_pictures
from mereo.inference.labelled import UNKNOWN, FolderAnswers, folder_labels
from mereo.inference.temperature import KEY


def issues_by_loops(p: list[list[float]], labels: list[int]) -> tuple[set[int], float]:
    """Confident answers that are not the label, and the number of them that the network gets wrong by itself."""
    places, expected = set(), 0.0
    for n, row in enumerate(p):
        k = max(range(len(row)), key=lambda j: row[j])
        own = [q[k] for q, label in zip(p, labels, strict=True) if label == k]
        if own and row[k] >= sum(own) / len(own):
            expected += 1 - row[k]
            places |= {n} if k != labels[n] else set()
    return places, expected


def test_label_issues_against_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (200,), generator=generator)
    true = torch.where(torch.rand(200, generator=generator) < 0.1, (labels + 1) % 4, labels)
    scores = torch.randn(200, 4, generator=generator) + 3 * torch.eye(4)[true]
    p = scores.double().softmax(1)
    issues = label_issues(p, labels)
    places, expected = issues_by_loops(p.tolist(), labels.tolist())
    assert set(issues.places) == places and issues.expected_errors == pytest.approx(expected)
    margins = [float(p[n].max() - p[n, labels[n]]) for n in issues.places]
    assert margins == sorted(margins, reverse=True)
    wrong = set((true != labels).nonzero()[:, 0].tolist())
    assert len(places & wrong) > 0.6 * max(len(wrong), len(places))
    # A class without labels is not suggested, and nothing can be compared without labels or with one class.
    assert all(p[n].argmax() != 3 for n in label_issues(p, labels % 3).places)
    assert label_issues(p[:0], labels[:0]) == label_issues(p, labels * 0) == ([], 0.0)


def test_the_same_picture_is_found_at_another_size_and_quality() -> None:
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    images = torch.nn.functional.interpolate(images, (32, 32), mode="bilinear")
    again = (images[1] + 0.004 * torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    plain = torch.full((2, 3, 32, 32), 0.5)
    small = torch.nn.functional.interpolate(images[:1], (24, 24), mode="bilinear", antialias=True)
    hashes = np.concatenate([picture_hashes(part) for part in (images, again[None], plain, images[:1], small)])
    assert hashes.shape == (9, 256) and np.isnan(hashes[5:7]).all()
    assert same_pictures(hashes) == [[0, 7, 8], [1, 4]]
    assert same_pictures(hashes[[0, 1]]) == same_pictures(hashes[:1]) == []
    assert picture_hashes(torch.rand(1, 2, 8, 8)).shape == picture_hashes(torch.rand(1, 1, 8, 8)).shape == (1, 256)


def answers_of(scores: list[list[float]], labels: list[int], trained: list[bool], **more: object) -> FolderAnswers:
    from pathlib import Path

    given = {"names": ("a", "b"), "kind": "logits", "temperature": 1.0, "same": [], "aside": []} | more
    return FolderAnswers(
        paths=[Path(f"{n}.png") for n in range(len(labels))], scores=torch.tensor(scores),
        labels=torch.tensor(labels), trained=torch.tensor(trained), **given,
    )  # fmt: skip


def test_errors_are_drawn_with_names_of_any_kind(tmp_path) -> None:
    left, right = np.random.default_rng(0).integers(0, 256, (2, 6, 8), dtype=np.uint8)
    path = tmp_path / f"{'long ' * 12}$x$.png"
    Image.fromarray(np.concatenate([left, right], axis=1)).save(path)
    answers = replace(answers_of([[2.0, 0.0]], [1], [False], channels=2), paths=[path])
    draw_errors(answers, tmp_path / "errors.png")
    with Image.open(tmp_path / "errors.png") as drawn:
        colours = {pixel for _, pixel in drawn.convert("RGB").getcolors(2**24)}
    assert any(red != green and green == blue for red, green, blue in colours)


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


def test_exchanged_labels_are_listed_unless_the_network_guesses() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (60,), generator=generator)
    guesses = torch.randn(60, 2, generator=generator)
    knows = 6 * torch.eye(2)[labels] + guesses
    assert label_issues(guesses.double().softmax(1), labels).places
    assert answers_of(guesses.tolist(), labels.tolist(), [False] * 60).issues.places == []
    labels[:3] = 1 - labels[:3]
    answers = answers_of(knows.tolist(), labels.tolist(), [False] * 60)
    assert answers.suggestions == {n: 1 - int(labels[n]) for n in range(3)}
    assert answers.are_labels_likely_wrong and "likely wrong label: " in answers.note(0)
    assert answers_of(knows.tolist(), labels.tolist(), [True] * 60).issues == answers.issues


def test_labels_that_a_poor_network_doubts_are_not_called_wrong(capsys) -> None:
    """Its labels are right and its probabilities true: drawn from them. The issues are its own errors."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(400, 4, generator=generator).mul(1.5)
    labels = torch.multinomial(scores.softmax(1), 1, generator=generator)[:, 0]
    answers = answers_of(scores.tolist(), labels.tolist(), [False] * 400, names=tuple("abcd"))
    count, expected = len(answers.issues.places), answers.issues.expected_errors
    assert count > 20 and expected == pytest.approx(count, rel=0.25)
    assert not answers.are_labels_likely_wrong
    assert "wrong label or error of the network" in answers.note(answers.issues.places[0])
    print_summary(answers, [])
    out = capsys.readouterr().out
    assert f"to check       {count} labels" in out and "likely wrong" not in out
    assert f"about {expected:.0f} answers" in out


def test_images_that_show_the_same_with_two_labels_are_to_check() -> None:
    answers = answers_of([[2.0, 0.0]] * 4, [0, 0, 1, UNKNOWN], [False] * 4, same=[[0, 1, 2], [3, 1]])
    assert answers.copies == {0: 2, 1: 3, 2: 0, 3: 1} and answers.suggestions == {0: 1, 2: 0}
    assert "same picture as 2.png, labelled b" in answers.note(0)


def test_without_the_extra_accuracy_is_printed_and_what_to_install(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    answers = answers_of([[2.0, 0.0], [0.0, 1.0]], [0, 0], [False] * 2)
    assert answers.suggestions == {}
    print_summary(answers, [])
    out = capsys.readouterr().out
    assert out.startswith("accuracy") and "pip install 'mereo[clean]'" in out


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
    assert len(wrong) == figures["count"] - figures["correct"]
    assert (out / "errors.png").read_bytes().startswith(b"\x89PNG")
    (unreadable,) = document["summary"]["unreadable"]
    assert unreadable["image"].endswith("broken.png")
    assert "not counted    4 images" in printed and "2 images in 1 group" in printed
    for file in ("predictions.json", "predictions.csv", "errors.png"):
        assert f"written        predictions/{file}" in printed
    suggested = {row["image"].rpartition("/")[2]: row["suggested label"] for row in rows}
    assert suggested["copy.png"] == "dog" and suggested["=dog0.png"] == "cat"
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


@pytest.mark.long
def test_foreign_files_are_not_replaced(weights, folder, tmp_path, capsys) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "errors.png").write_text("precious")
    assert main(["predict", str(folder), "--weights", str(weights), "--out", str(out)]) == 2
    assert "errors.png" in capsys.readouterr().err
    assert (out / "errors.png").read_text() == "precious"
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
