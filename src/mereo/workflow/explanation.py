"""`mereo.explain`: which parts of an image a prediction rests on."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mereo.cli.explain import BATCH, read_batches, single_kind, write
from mereo.cli.options import ExplainOptions
from mereo.errors import UsageError, check_positive, type_of, unknown
from mereo.explain import draw_explanation
from mereo.explain.explanation import Explanation
from mereo.explain.explanation import explain as explain_tensor
from mereo.explain.folder import Shown
from mereo.explain.target import Target
from mereo.files import reading
from mereo.inference.predict import class_names
from mereo.models import VisionModel
from mereo.runtime.progress import Reporter
from mereo.workflow.display import html_table, png, text_table
from mereo.workflow.images import as_files
from mereo.workflow.networks import trained_network
from mereo.workflow.options import fit, options_of

_ELSEWHERE = {"images": "it is the second argument", "weights": "it is the first argument, model"}


class Explanations(Sequence[Explanation]):
    """Explanations of images, a batch of at most 12 at a time: a table when printed, a picture in a notebook.

    Args:
        model: the network.
        batches: images with their names, and their classes where these are known.
        asked: numbers of the classes that are explained, or the function that is; the predicted ones when None.
        written: the files that were written, by kind.
    """

    def __init__(
        self,
        model: VisionModel,
        batches: Sequence[Shown],
        asked: Target | None,
        written: dict[str, list[Path]],
    ) -> None:
        self.model, self._batches, self.written = model, batches, written
        self.names = [name for batch in batches for name in batch.names]
        counts = [len(batch.names) for batch in batches]
        self._asked: list[Target | None] = [asked] * len(counts)
        if isinstance(asked, Tensor):
            self._asked = list(asked.split(counts))
        self._items = [
            explain_tensor(model, batch.images, target=target)
            for batch, target in zip(batches, self._asked, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    @property
    def scores(self) -> Tensor:
        """The scores of the classes, (images, classes)."""
        return torch.cat([item.scores for item in self._items])

    @property
    def classes(self) -> list[str]:
        """The class that is explained for each image; "target" for a function."""
        names = [*class_names(self.model), "target"]
        return [names[number] for item in self._items for number in item.explained.tolist()]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: image, the class that is explained, its score."""
        rows = zip(self.names, self.classes, torch.cat([item.value for item in self._items]).tolist(), strict=True)
        return ["image", "class", "score"], [[name, label, f"{score:.3f}"] for name, label, score in rows]

    def __str__(self) -> str:
        return text_table(*self.table())

    __repr__ = __str__

    def picture(self, number: int = 0) -> bytes:
        """The picture of one batch as PNG: image, scores, couplings, and which parts voted for the class."""
        batch, asked = self._batches[number], self._asked[number]
        if asked is not None and not isinstance(asked, Tensor):
            raise UsageError("target is a function, of which no picture of scores is drawn; draw occlusion_map.heat.")
        with tempfile.TemporaryDirectory(prefix="mereo-explain-") as folder:
            path = Path(folder) / "explanation.png"
            draw_explanation(
                self.model, batch.images, path, titles=batch.names, true_labels=batch.labels,
                classes=asked, shown=batch.large,
            )  # fmt: skip
            return path.read_bytes()

    def _repr_png_(self) -> bytes | None:
        return None if callable(self._asked[0]) else self.picture()

    def _repr_html_(self) -> str:
        if callable(self._asked[0]):
            return html_table(*self.table())
        more = f"<p>The first {BATCH} of {len(self.names):,} images.</p>" if len(self) > 1 else ""
        return png(self.picture()) + more + html_table(*self.table())


def explain(
    model: Any,
    images: Any,
    *,
    classes: Any = None,
    target: Callable[[Tensor], Tensor] | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Explanations:
    """Explain predictions for images, as `mereo explain` does; files are written only where `out` is given.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network; what `mereo.train` returned; None
            for the newest run.
        images: as of `mereo.predict`.
        classes: name or number of the class to explain, one for all images or one for each; the predicted one when
            None.
        target: in place of a class, a function from the outputs to one number for each image, (batch,), such as the
            mean of a map or the similarity of an embedding.
        out: folder for the files of the command, or a file NAME.png or NAME.html.
        options: those of the command: only, keep, device, strict.

    mereo.explain("runs/mspcaps_tiny-photos", "holiday/beach.jpg")        # a picture in a notebook
    mereo.explain(model, image)[0].maps["head.coupling"].heat            # (batch, height, width)
    """
    parsed = options_of(
        ExplainOptions, "mereo.explain", options, _ELSEWHERE, images=(), out=fit("out", out, Path | None)
    )
    check_positive(keep=parsed.keep)
    single_kind(parsed)
    if out is None and parsed.only:
        raise UsageError(f"only is {parsed.only}, which chooses files to write; give out, a folder for them.")
    if target is not None and (classes is not None or out is not None):
        raise UsageError("target is given, and classes or out too; files and classes are of scores. Leave them out.")
    if target is not None and not callable(target):
        raise UsageError(f"target is {type_of(target)}; give a function of the outputs, or classes.")
    network, source = trained_network(model, parsed.device)
    with as_files(images) as (paths, held), reading(*paths):
        written = {} if out is None else write(parsed, network, paths, source, Reporter(silent=True))
        in_memory = {path.name: path.stem for path in held}
        batches = [
            batch._replace(names=[in_memory.get(name, name) for name in batch.names])
            for batch in read_batches(paths, network, parsed.strict, lambda count: None)
        ]
    count = sum(len(batch.names) for batch in batches)
    return Explanations(network, batches, _numbers(network, classes, count) if target is None else target, written)


def _numbers(model: VisionModel, classes: Any, count: int) -> Tensor | None:
    """Classes by name or number as int64 (count,); None for None."""
    if classes is None:
        return None
    if isinstance(classes, Mapping) or not isinstance(classes, str | int | Iterable):
        raise UsageError(
            f"classes is {type_of(classes)}; give a name or a number, or a list of them, one for each image."
        )
    given = [classes] * count if isinstance(classes, str | int) else list(classes)
    if len(given) != count:
        raise UsageError(f"classes has {len(given)} entries for {count} images; give one for each, or one for all.")
    known = list(class_names(model))
    for each in given:
        if not isinstance(each, str | int | np.integer | Tensor):
            raise UsageError(f"classes has {type_of(each)}; give names or numbers of classes.")
        if isinstance(each, str) and each not in known:
            raise unknown("class", each, known)
    return torch.tensor([known.index(each) if isinstance(each, str) else int(each) for each in given])
