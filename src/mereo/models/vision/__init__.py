"""Vision backbones, one file each with its presets."""

from mereo.models.vision.cait import CaiT

__all__ = ["CaiT"]
