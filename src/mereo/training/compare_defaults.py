"""The settings of a comparison that are not given: chosen from the data and the first network, and shared by all."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mereo.data import DatasetInfo
from mereo.errors import UsageError
from mereo.files import read_regular, write_atomically
from mereo.training.automatic import Automatic, choose, show_setting
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.studies import Study, Variant

NAME = "defaults.json"
"""The file in the folder of a comparison that keeps what was chosen, because the time of a step differs each time."""
PLACES = ("device", "data_root")
"""Fields that may differ in a later call."""
SHARED = ("epochs", "batch_size", "precision", "validation_fraction")
"""Settings of the first network that all others take; the other settings follow from these, the data and a network."""
_LONGEST_FILE = 2**20


class CompareDefaults:
    """Chooses the settings that are not given, for each network of a comparison that has no recipe.

    All networks take epochs and batch size of the first, so that all see the same images equally often. The rate
    follows from the kind of network, and the size of the images from what is in them and from the time of the first.

    Args:
        overrides: fields that are given for all networks.
        folder: of the comparison. What an earlier call with the same overrides chose is used again.
        info: of the data.
        say: prints what is chosen.
    """

    def __init__(
        self, overrides: Mapping[str, Any], folder: Path, info: DatasetInfo, say: Callable[[str], None]
    ) -> None:
        self.overrides, self.path, self.info, self.say = overrides, folder / NAME, info, say
        given = {name: value for name, value in overrides.items() if name not in PLACES}
        self.kept: dict[str, Any] = {"given": json.loads(json.dumps(given)), "networks": {}}
        if (earlier := _read(self.path)).get("given") == self.kept["given"]:
            self.kept = earlier
            say(f"settings that are not given are taken from {self.path}")

    def apply(self, study: Study) -> Study:
        """The study with every setting that was open; UsageError for a time in minutes beside a recipe."""
        networks, variants = self.kept["networks"], dict(study.variants)
        lines: list[str] = []
        alike: dict[str, list[str]] = {}
        for label, variant in study.variants.items():
            if (recipe := variant.recipe or study.recipe) is not None:
                if "minutes" in self.overrides:
                    raise UsageError(
                        f"minutes is {self.overrides['minutes']:g}, but {recipe} is a recipe, which has a number of"
                        " epochs; give --epochs."
                    )
                continue
            if label not in networks:
                taken = self._of_the_first()
                defaults = self._choose(variant, taken)
                chosen = defaults.settings
                if not networks:
                    lines = defaults.lines(timed=False)
                elif chosen:
                    rest = f"; {', '.join(taken)} as for the first network" if taken else ""
                    alike.setdefault(_shown(chosen) + rest, []).append(label)
                networks[label] = taken | chosen
            variants[label] = replace(variant, changes={**networks[label], **variant.changes})
        for line in [*lines, *(f"chosen for {', '.join(labels)}: {shown}" for shown, labels in alike.items())]:
            self.say(line)
        return replace(study, variants=variants)

    def save(self) -> None:
        """Keep what was chosen for later calls."""
        write_atomically(self.path, (json.dumps(self.kept, indent=2) + "\n").encode())

    def _of_the_first(self) -> dict[str, Any]:
        """The settings of the first network that all others take; none for itself."""
        first: dict[str, Any] = next(iter(self.kept["networks"].values()), {})
        return {name: value for name, value in first.items() if name in SHARED}

    def _choose(self, variant: Variant, taken: Mapping[str, Any]) -> Automatic:
        """The settings of a network that are not given."""
        given = {**taken, **variant.changes, **self.overrides, "model_args": dict(variant.model_args)}
        if "img_size" in variant.model_args:
            given.pop("img_size", None)
        return choose(TrainConfig().replace(**given), given, self.info, by_clock=False)


def _read(path: Path) -> dict[str, Any]:
    """What an earlier call chose; empty if there was none, or the file is not one of ours."""
    try:
        kept = json.loads(read_regular(path, _LONGEST_FILE))
        known = all(FIELDS.keys() >= settings.keys() for settings in kept["networks"].values())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
    return dict(kept) if known else {}


def _shown(chosen: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {show_setting(name, value)}" for name, value in chosen.items())
