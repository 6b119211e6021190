"""Reads and validates requests of the page; their content is not trusted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mereo.errors import UsageError, check_choice

COUPLINGS = ("own", "uniform", "shuffled")
MOST_PLACES = 64
LARGEST = {"rotate": 180.0, "noise": 1.0, "attack": 0.5}
"""Largest absolute value of each change."""


@dataclass(frozen=True)
class PredictionRequest:
    """A request to classify an image, and the changes of the image and the network.

    Attributes:
        image: id of an uploaded image, or None for a test image.
        owner, index: the network whose test image it is, and its number.
        explain: the class to explain; the predicted one when None.
        rotate: degrees, counter-clockwise.
        noise: standard deviation, in units of the full range.
        attack: largest change of a pixel by the adversarial attack; 0 for none.
        couplings: one of `COUPLINGS`.
        silence: places (x, y), as fractions of width and height, whose parts are silenced.
    """

    image: str | None
    owner: int
    index: int
    explain: int | None
    rotate: float
    noise: float
    attack: float
    couplings: str
    silence: tuple[tuple[float, float], ...]

    @property
    def changed(self) -> bool:
        """Whether anything differs from the image and the network as they are."""
        return bool(self.rotate or self.noise or self.attack or self.silence or self.couplings != "own")


def number(given: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """An integer field of a request; UsageError if it is missing or invalid."""
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 2**31:
        raise UsageError(f"{name} is {str(value)[:40]!r}; it must be a whole number.")
    return value


def _amount(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise UsageError(f"{name} is {str(value)[:40]!r}; it must be a number.")
    if abs(value) > LARGEST[name] or (value < 0 and name != "rotate"):
        least = -LARGEST[name] if name == "rotate" else 0
        raise UsageError(f"{name} is {value:g}; it must be from {least:g} to {LARGEST[name]:g}.")
    return float(value)


def _places(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or len(value) > MOST_PLACES:
        raise UsageError(f"silence must be a list of at most {MOST_PLACES} places.")
    places = []
    for place in value:
        fits = isinstance(place, list) and len(place) == 2
        if not fits or not all(isinstance(x, int | float) and 0 <= x <= 1 for x in place):
            raise UsageError("silence must hold places of two numbers from 0 to 1.")
        places.append((float(place[0]), float(place[1])))
    return tuple(places)


def parse_request(given: Any) -> PredictionRequest:
    """Validate the JSON of a request; UsageError for anything invalid."""
    if not isinstance(given, dict):
        raise UsageError("the request must be a JSON object.")
    image, explain, couplings = given.get("image"), given.get("explain"), given.get("couplings", "own")
    if image is not None and (not isinstance(image, str) or len(image) > 64):
        raise UsageError("image must be the id of an uploaded image.")
    if not isinstance(couplings, str) or len(couplings) > 64:
        raise UsageError(f"couplings must be one of {', '.join(COUPLINGS)}.")
    check_choice("couplings", couplings, COUPLINGS)
    amounts = {name: _amount(name, given.get(name, 0)) for name in LARGEST}
    return PredictionRequest(
        image=image, owner=number(given, "owner", 0), index=number(given, "index", 0),
        explain=None if explain is None else number(given, "explain"),
        rotate=amounts["rotate"], noise=amounts["noise"], attack=amounts["attack"], couplings=couplings,
        silence=_places(given.get("silence", [])),
    )  # fmt: skip
