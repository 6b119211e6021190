"""Answers for a folder of labelled images: accuracy, errors, and labels to check."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mereo.data.names import is_table
from mereo.data.table import table_images
from mereo.inference.answers import Answers
from mereo.inference.calibration import confidences, expected_calibration_error, reliability, ways_of
from mereo.inference.clean import Array, LabelIssues, is_available, label_issues, picture_hashes, same_pictures
from mereo.inference.metrics import chance_accuracy, class_scores, confusion_matrix, wilson_interval
from mereo.inference.predict import Aside, answer_files, class_names
from mereo.inference.temperature import calibration_of, fit_temperature, probabilities
from mereo.inference.views import views_of
from mereo.models import VisionModel

UNKNOWN = -1
"""The label of an image whose folder has the name of no class."""
FEWEST = 20
"""Least number of labelled images for fitting a temperature, if the weights have none."""
UNSURE = 0.1
"""Lead over the second class, as a probability, below which an answer is unsure."""


def _composed(name: str) -> str:
    """A name with its accents in one form, since file systems differ in theirs."""
    return unicodedata.normalize("NFC", name)


def folder_labels(given: Iterable[str | Path], paths: Sequence[Path], names: Sequence[str]) -> Tensor:
    """The label of each image: as a given table (.csv) states it, or the class that has the name of its folder.

    Only images of given folders and tables are labelled; images given by their own path are not.

    Shapes: -> int64 (n,), `UNKNOWN` for an image without a label.
    """
    numbers = {_composed(name): number for number, name in enumerate(names)}
    places = [Path(each) for each in given]
    folders = [place for place in places if place.is_dir()]
    listed = {image: label for place in places if is_table(place) for image, label in table_images(place).items()}

    def candidates(path: Path) -> list[str]:
        if path in listed:
            return [listed[path]]
        folder = next((folder for folder in folders if path.is_relative_to(folder)), None)
        if folder is None:
            return []
        # The nearest folder comes first, because the folder of a class may have others inside.
        return [*reversed(path.relative_to(folder).parent.parts), folder.resolve().name]

    labels = [next((numbers[n] for n in map(_composed, candidates(path)) if n in numbers), UNKNOWN) for path in paths]
    return torch.tensor(labels, dtype=torch.int64)


@dataclass(frozen=True)
class FolderAnswers:
    """The answers of a network for image files.

    Attributes:
        paths: of the files that were read.
        names: of the classes.
        scores: of the classes, float32 (n, classes).
        kind: of the scores, see `VisionModel.score_kind`.
        labels: int64 (n,), `UNKNOWN` for an image without a label.
        trained: whether the network was trained on an image, bool (n,).
        temperature: stored with the weights; None if they have none.
        same: groups of labelled images that show the same, see `same_pictures`.
        aside: files that could not be read, with reasons.
        channels: of an image as it is shown: 2 for the views of two cameras, else 3.
        views: of an image, over which its scores are a mean.
    """

    paths: list[Path]
    names: tuple[str, ...]
    scores: Tensor
    kind: str
    labels: Tensor
    trained: Tensor
    temperature: float | None
    same: list[list[int]]
    aside: list[Aside]
    channels: int = 3
    views: int = 1

    @cached_property
    def probabilities(self) -> Tensor:
        """Probabilities of the classes, float64 (n, classes).

        By the temperature of the weights. Where they have none and there are labels enough, by one fitted to the other
        half of the labelled images, so that no image takes part in its own; otherwise the scores as they are.
        """
        if self.temperature is not None:
            return probabilities(self.scores, self.temperature)
        result = confidences(self.scores.double(), ways_of(self.kind)[0])
        known = (self.labels >= 0).nonzero()[:, 0]
        if len(known) < FEWEST:
            return result
        half = torch.zeros(len(self.labels), dtype=torch.bool)
        half[known[::2]] = True
        for part in (half, ~half):
            others = known[~part[known]]
            result[part] = probabilities(self.scores[part], fit_temperature(self.scores[others], self.labels[others]))
        return result

    @property
    def predicted(self) -> Tensor:
        """The class of the highest score, (n,)."""
        return self.scores.argmax(1)

    @cached_property
    def errors(self) -> list[int]:
        """Places of the misclassified images, the most confident first."""
        wrong = ((self.labels >= 0) & (self.predicted != self.labels)).nonzero()[:, 0]
        top = self.probabilities.amax(1)[wrong]
        return wrong[top.argsort(descending=True, stable=True)].tolist()

    @cached_property
    def issues(self) -> LabelIssues:
        """Labels to check, see `label_issues`; none without the extra `clean`.

        Images that the network was trained on are among them: few of their labels are contradicted, but that is
        stronger evidence. A network that predicts no better than chance knows less than whoever labelled the images,
        and contradicts nothing.
        """
        known = (self.labels >= 0).nonzero()[:, 0]
        chance = chance_accuracy(confusion_matrix(self.predicted[known], self.labels[known], len(self.names)))
        guesses = chance is not None and self.figures(self.labels >= 0)["accuracy_low"] <= chance
        if guesses or not is_available():
            return LabelIssues([], 0.0)
        places, expected = label_issues(self.probabilities[known], self.labels[known])
        return LabelIssues(known[places].tolist(), expected)

    @property
    def are_labels_likely_wrong(self) -> bool:
        """Whether issues are more than twice the errors that the network itself is expected to make."""
        return len(self.issues.places) > 2 * self.issues.expected_errors

    @cached_property
    def copies(self) -> dict[int, int]:
        """For each image that is there more than once, another that shows the same, if possible of another label."""
        copies = {}
        for group in self.same:
            for n in group:
                others = [m for m in group if m != n]
                copies[n] = next((m for m in others if self._contradicts(n, m)), others[0])
        return copies

    def _contradicts(self, one: int, other: int) -> bool:
        label, another = int(self.labels[one]), int(self.labels[other])
        return label != another and UNKNOWN not in (label, another)

    @cached_property
    def contradictions(self) -> dict[int, int]:
        """For each image whose copy has another label, the other label."""
        return {n: int(self.labels[m]) for n, m in self.copies.items() if self._contradicts(n, m)}

    @cached_property
    def suggestions(self) -> dict[int, int]:
        """The class that each label to check may be instead: `contradictions` first, then `issues`."""
        issues = {n: int(self.predicted[n]) for n in self.issues.places}
        return self.contradictions | {n: k for n, k in issues.items() if n not in self.contradictions}

    def figures(self, among: Tensor) -> dict[str, Any]:
        """Accuracy with its interval, balanced accuracy and calibration error of some labelled images.

        Shapes: among bool (n,).
        """
        chosen = (among & (self.labels >= 0)).nonzero()[:, 0]
        labels, count = self.labels[chosen], len(chosen)
        correct = int((self.predicted[chosen] == labels).sum())
        low, high = wilson_interval(correct / max(count, 1), count)
        by_class = class_scores(confusion_matrix(self.predicted[chosen], labels, len(self.names)))
        recalls = [scores.recall for scores in by_class if scores.support]
        figures = {
            "count": count, "correct": correct, "accuracy": correct / max(count, 1), "accuracy_low": low,
            "accuracy_high": high, "balanced_accuracy": sum(recalls) / max(len(recalls), 1),
        }  # fmt: skip
        if count:
            plain = Answers(self.scores[chosen], labels, self.kind)
            before = confidences(plain.scores, ways_of(self.kind)[0])
            figures["ece"] = expected_calibration_error(reliability(self.probabilities[chosen], labels))
            figures["ece_uncalibrated"] = expected_calibration_error(reliability(before, labels))
        return figures

    @cached_property
    def confusions(self) -> list[tuple[str, str, int]]:
        """Label, predicted class and count of the misclassified images, the most frequent first."""
        pairs = Counter((int(self.labels[n]), int(self.predicted[n])) for n in self.errors)
        return [(self.names[a], self.names[b], count) for (a, b), count in pairs.most_common()]

    def note(self, place: int) -> str:
        """What is to be known of an image besides its prediction: doubts about its label, copies, near misses."""
        label, predicted = int(self.labels[place]), int(self.predicted[place])
        shares = self.probabilities[place]
        notes = []
        if place in self.issues.places:
            what = "likely wrong label" if self.are_labels_likely_wrong else "wrong label or error of the network"
            notes.append(f"{what}: {self.names[predicted]}?")
        if place in self.copies:
            other = self.copies[place]
            labelled = f", labelled {self.names[int(self.labels[other])]}" if self._contradicts(place, other) else ""
            notes.append(f"same picture as {self.paths[other].name}{labelled}")
        if label not in (UNKNOWN, predicted):
            if float(shares[predicted] - shares[label]) < UNSURE:
                notes.append("unsure between the two")
            rank = int((self.scores[place] > self.scores[place, label]).sum()) + 1
            if rank > 2:
                notes.append(f"label ranks only {rank} of {len(self.names)}")
        return "; ".join(notes)


def answer_folder(
    model: VisionModel,
    paths: Sequence[Path],
    labels: Tensor,
    *,
    trained: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 64,
    strict: bool = False,
    progress: Callable[[int], None] | None = None,
) -> FolderAnswers:
    """The answers of a classifier for image files, labelled or not.

    Args:
        model: whose weights may hold a temperature; with views, see `mean_over_views`.
        paths: of the files.
        labels: see `folder_labels`.
        trained: which images, as the network takes them, it was trained on; None if unknown.
        batch_size: files read at a time.
        strict: whether an unreadable file is an error.
        progress: called with the number of files done since the last call.
    """
    place_of = {path: place for place, path in enumerate(paths)}
    good, aside, scores, hashes = list[Path](), list[Aside](), list[Tensor](), list[Array]()
    seen = [torch.zeros(0, dtype=torch.bool)]
    clean = is_available() and bool((labels >= 0).any())
    for answered in answer_files(model, paths, batch_size=batch_size, strict=strict):
        good += answered.paths
        aside += answered.aside
        if answered.paths:
            scores.append(answered.outputs.cpu())
            if clean:
                hashes.append(picture_hashes(answered.images))
            unknown = torch.zeros(len(answered.paths), dtype=torch.bool)
            seen.append(unknown if trained is None else trained(answered.images))
        if progress is not None:
            progress(len(answered.paths) + len(answered.aside))
    calibration = calibration_of(model)
    places = torch.tensor([place_of[path] for path in good], dtype=torch.int64)
    return FolderAnswers(
        paths=good,
        names=class_names(model),
        scores=torch.cat(scores) if scores else torch.zeros(0, model.num_classes),
        kind=model.score_kind,
        labels=labels[places],
        trained=torch.cat(seen),
        temperature=None if calibration is None else calibration.temperature,
        same=same_pictures(np.concatenate(hashes)) if hashes else [],
        aside=aside,
        channels=2 if model.image_shape[0] == 2 else 3,
        views=1 if (views := views_of(model)) is None else views.count,
    )
