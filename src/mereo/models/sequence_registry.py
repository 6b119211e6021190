"""The catalogue of sequence models: a name, a class, the arguments that make the published network, its source."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mereo.core import Source
from mereo.errors import unknown
from mereo.models.arguments import as_tuples, check_arguments
from mereo.models.sequence_model import SequenceModel


@dataclass(frozen=True)
class SequenceEntry:
    """One published network that reads tokens.

    Attributes:
        name: for `create_model`.
        module: the class.
        summary: one sentence.
        arguments: of the constructor, where the preset differs from the defaults.
        source: an arXiv id, a DOI or a URL.
        parameters: number of parameters of the preset.
        family: networks of one kind, which share a tiny preset; the name of the file by default.
        recipe: the training recipe, a name of `mereo recipes`.
        tiny: arguments that make the smallest network of the family; None for other presets than the first of a family.
        variants: changes of the tiny network that are tested as well, by a short name.
        aliases: other names that `create_model` takes for it.
    """

    name: str
    module: type[SequenceModel]
    summary: str
    arguments: Mapping[str, Any]
    source: str
    parameters: int
    family: str
    recipe: str | None = None
    tiny: Mapping[str, Any] | None = None
    variants: Mapping[str, Mapping[str, Any]] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Any]:
        """Every argument of the network with the value that the preset gives it."""
        parameters = inspect.signature(self.module).parameters.values()
        return {p.name: p.default for p in parameters} | dict(self.arguments)

    @property
    def citation(self) -> Source:
        """The source, with a link and an entry of a bibliography."""
        return Source(self.source)

    @property
    def link(self) -> str:
        """The web page of the source."""
        return self.citation.link

    def pretrained_cfg(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Provenance, and what a sample is: `input_size` is (tokens of a window,)."""
        return {
            "architecture": self.name,
            "num_classes": arguments["vocab_size"],
            "input_size": (arguments["context"],),
            "paper_ids": self.source,
        }


SEQUENCE_MODELS: dict[str, SequenceEntry] = {}
SEQUENCE_ALIASES: dict[str, str] = {}
"""Other names of sequence models, with the names in `SEQUENCE_MODELS`."""


def is_sequence_model(name: str) -> bool:
    """Whether `create_model` makes a sequence model of that name."""
    return name in SEQUENCE_MODELS or name in SEQUENCE_ALIASES


def get_sequence_entry(name: str) -> SequenceEntry:
    """The row of one sequence model, by its name or an alias; UsageError with the nearest names if there is none."""
    name = SEQUENCE_ALIASES.get(name, name)
    if name not in SEQUENCE_MODELS:
        raise unknown("sequence model", name, SEQUENCE_MODELS)
    return SEQUENCE_MODELS[name]


def sequence_families() -> dict[str, SequenceEntry]:
    """The entry that has the tiny preset of each family of sequence models, by the family's name."""
    return {entry.family: entry for entry in SEQUENCE_MODELS.values() if entry.tiny is not None}


def build_sequence(name: str, **given: Any) -> SequenceModel:
    """A sequence model as it starts, without trained weights; arguments not given are the preset's."""
    entry = get_sequence_entry(name)
    defaults = entry.defaults
    for argument in given:
        if argument not in defaults:
            raise unknown(f"argument of {entry.name}", argument, defaults)
    arguments = defaults | {k: as_tuples(v) for k, v in given.items()}
    check_arguments(entry.name, entry.module.__init__, defaults, arguments)
    model = entry.module(**arguments)
    model.config = {"model": entry.name, "args": arguments}
    model.pretrained_cfg = entry.pretrained_cfg(arguments)
    return model
