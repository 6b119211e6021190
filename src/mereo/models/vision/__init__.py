"""Vision backbones, one file each with its presets."""

from mereo.models.vision.hierarchical_spectformer import HierarchicalSpectFormer as HierarchicalSpectFormer
from mereo.models.vision.ninformer import NiNformer as NiNformer
from mereo.models.vision.shvit import SHViT as SHViT
from mereo.models.vision.spectformer import SpectFormer as SpectFormer
