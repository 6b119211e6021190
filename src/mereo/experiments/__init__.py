"""Experiments that answer a question of a paper: a file each with `run(settings)`, run by `mereo reproduce NAME`.

`run` draws its pictures into `settings.folder` and returns plain numbers, strings, lists and dicts; they are written to
`results.json` beside the pictures. The command prints what lies under three names of that dict:

    tables    title -> rows, each a dict column -> value
    notes     lines below the tables
    pictures  names of the files drawn

This module imports no torch.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What the command line gives an experiment; None means the experiment's own.

    Attributes:
        folder: for pictures and results.json; it exists.
        data, data_root, epochs, warmup_epochs, limit, batch_size, seeds, device: as in `mereo train`.
        variants: of a study that the experiment trains; all when empty.
        images: test images to work on.
        say: called with lines of progress.
    """

    folder: Path
    data: str | None = None
    data_root: str | None = None
    epochs: int | None = None
    warmup_epochs: float | None = None
    limit: int | None = None
    batch_size: int | None = None
    seeds: int = 1
    device: str | None = None
    variants: tuple[str, ...] = ()
    images: int | None = None
    say: Callable[[str], None] = field(default=print, repr=False)


@dataclass(frozen=True)
class Experiment:
    """One experiment: what it asks, where from, and the module of this folder that has its `run`.

    Attributes:
        uses: the settings it heeds beside the folder; another one given is a UsageError.
        data: the data set it works on unless told otherwise; None where it needs none.
    """

    question: str
    source: str
    module: str
    uses: frozenset[str] = frozenset()
    data: str | None = None

    def run(self, settings: Settings) -> dict[str, Any]:
        """Run it, write results.json, and return what stands in it; `files` names all that was written."""
        from mereo.files import write_atomically

        settings.folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = import_module(f"{__name__}.{self.module}").run(settings)
        path = settings.folder / "results.json"
        files = [str(settings.folder / name) for name in found.get("pictures", ())]
        found = {**found, "files": [*files, str(path)]}
        write_atomically(path, (json.dumps(found, indent=2) + "\n").encode())
        return found


TRAINING = frozenset({"data", "data_root", "epochs", "limit", "batch_size", "device", "images"})
"""What an experiment heeds that trains networks on a data set."""

EXPERIMENTS: dict[str, Experiment] = {
    "toy_routing": Experiment(
        "What does a penalty on the parents do, and where does its sparsity come from?",
        "arXiv:2209.02567, appendix B",
        "toy_routing",
    ),
    "kiefer_routing": Experiment(
        "Does CapsNet need its routing, or its decoder, to be right and to be sparse?",
        "arXiv:2209.02567, appendix A",
        "kiefer_routing",
        TRAINING | {"variants", "seeds", "warmup_epochs"},
        data="mnist",
    ),
    "sparse_inference": Experiment(
        "Does sparse inference do what routing was meant to do?",
        "arXiv:2209.02567, section 3.1",
        "sparse_inference",
        TRAINING,
        data="digits",
    ),
    "top_down": Experiment(
        "Do two parents share the parts of two overlaid digits out between them, top-down?",
        "arXiv:2209.02567, section 3.2",
        "top_down",
        TRAINING,
        data="digits",
    ),
    "generative_parts": Experiment(
        "What do parents know that explain the parts of images, and never saw a label?",
        "arXiv:2209.02567, equations 7 and 8; the inversion and the training are ours",
        "generative_parts",
        TRAINING,
        data="digits",
    ),
    "constellations": Experiment(
        "Which inference finds whose part a point is: variational, or routing?",
        "arXiv:2103.06676, arXiv:2209.02567",
        "constellations",
        frozenset({"seeds", "epochs", "images"}),
    ),
}
