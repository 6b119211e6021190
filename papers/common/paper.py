"""What a paper declares in its `__init__.py`: experiments, studies and benchmark suites. This module imports no torch.

An experiment is a module with `run(settings)`. It draws its pictures into `settings.folder` and returns plain numbers,
strings, lists and dicts, which are written to `results.json` next to the pictures. Three entries are printed:

    tables    title -> rows, each a dict column -> value
    notes     lines below the tables
    pictures  names of the files drawn
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from papers.common.settings import Settings

if TYPE_CHECKING:
    from mereo.training.studies import Study

TRAINING = frozenset({"data", "data_root", "epochs", "limit", "batch_size", "device", "images"})
"""The settings of an experiment that trains networks on a data set."""
SMALLEST: Mapping[str, Any] = {"data": "digits", "epochs": 1, "limit": 64, "batch_size": 16, "images": 20}


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        question: that it answers.
        source: the paper, with its section.
        module: has its `run`; by default the one in the paper's folder that is named like the experiment.
        uses: the settings it uses besides the folder; any other is a UsageError.
        data: its default data set; None if it needs no data.
        smallest: settings of its smallest form, which the tests run, if they differ from `SMALLEST`.
        constants: values of the module's constants in that form.
    """

    question: str
    source: str
    module: str = ""
    uses: frozenset[str] = frozenset()
    data: str | None = None
    smallest: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    def run(self, settings: Settings) -> dict[str, Any]:
        """Run it, write results.json and return its content; `files` lists all files written."""
        from mereo.files import write_atomically

        settings.folder.mkdir(parents=True, exist_ok=True)
        results: dict[str, Any] = import_module(self.module).run(settings)
        path = settings.folder / "results.json"
        files = [str(settings.folder / name) for name in results.get("pictures", ())]
        results = {**results, "files": [*files, str(path)]}
        write_atomically(path, (json.dumps(results, indent=2) + "\n").encode())
        return results


@dataclass(frozen=True)
class Paper:
    """One paper.

    Attributes:
        title, source: of the paper.
        experiments: by the name that `mereo reproduce` takes.
        studies: variants of one training with published numbers, by name.
        suites: of `mereo bench`, name -> module:attribute.
    """

    title: str
    source: str
    experiments: Mapping[str, Experiment] = field(default_factory=dict)
    studies: Mapping[str, "Study"] = field(default_factory=dict)
    suites: Mapping[str, str] = field(default_factory=dict)
