"""The catalogue of sequence models: a name, a class, the arguments that make the published network, its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mereo.errors import unknown
from mereo.models.entry import NetworkEntry
from mereo.models.sequence_model import SequenceModel


@dataclass(frozen=True)
class SequenceEntry(NetworkEntry):
    """One published network that reads tokens."""

    module: type[SequenceModel]

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
    arguments = entry.resolve(given)
    model = entry.module(**arguments)
    model.config = {"model": entry.name, "args": arguments}
    model.pretrained_cfg = entry.pretrained_cfg(arguments)
    return model
