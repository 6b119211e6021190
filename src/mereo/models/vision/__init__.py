"""Vision backbones, one file each with its presets."""

from mereo.models.vision.biformer import BiFormer as BiFormer
from mereo.models.vision.halonet import HaloNet as HaloNet
