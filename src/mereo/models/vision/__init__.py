"""Vision backbones, one file each with its presets."""

from mereo.models.vision.shvit import SHViT as SHViT
