"""Vision backbones, one file each with its presets."""

from mereo.models.vision.cait import CaiT
from mereo.models.vision.davit import DaViT

__all__ = ["CaiT", "DaViT"]
