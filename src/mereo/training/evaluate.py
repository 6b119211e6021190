"""Moved to `mereo.inference.evaluate`."""

from mereo.inference.evaluate import normalise

__all__ = ["normalise"]
