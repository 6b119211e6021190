"""Vision backbones, one file each with its presets."""

from mereo.models.vision.davit import DaViT as DaViT
from mereo.models.vision.volo import VOLO as VOLO
