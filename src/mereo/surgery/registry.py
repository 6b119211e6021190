"""Surgeries by name: a saved file lists those that were applied to a network, and loading applies them again."""

from collections.abc import Callable
from typing import Any

from torch import nn

SURGERIES: dict[str, Callable[..., nn.Module]] = {}
"""Each a function (model, **arguments) -> model with the same result for the same arguments, weights aside."""


def note_surgery(model: nn.Module, name: str, arguments: dict[str, Any]) -> None:
    """Add a surgery to the configuration that is saved with a network of the catalogue; others have none."""
    config = getattr(model, "config", None)
    if isinstance(config, dict):
        surgery = [*config.get("surgery", ()), {"name": name, "args": arguments}]
        model.config = {**config, "surgery": surgery}  # type: ignore[assignment]


def forget_surgery(model: nn.Module, name: str) -> None:
    """Take the surgeries of that name out of the configuration."""
    config = getattr(model, "config", None)
    if isinstance(config, dict) and "surgery" in config:
        rest = [each for each in config["surgery"] if each["name"] != name]
        kept = {key: value for key, value in config.items() if key != "surgery"}
        model.config = kept | ({"surgery": rest} if rest else {})  # type: ignore[assignment]
