"""Vision backbones, one file each with its presets."""

import mereo.models.vision.maxvit_presets  # noqa: F401
from mereo.models.vision.cait import CaiT
from mereo.models.vision.davit import DaViT
from mereo.models.vision.maxvit import MaxViT

__all__ = ["CaiT", "DaViT", "MaxViT"]
