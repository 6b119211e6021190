"""Vision backbones, one file each with its presets."""

import mereo.models.vision.halonet_layout
import mereo.models.vision.halonet_presets
import mereo.models.vision.maxvit_presets  # noqa: F401
from mereo.models.vision.biformer import BiFormer
from mereo.models.vision.cait import CaiT
from mereo.models.vision.cca import CCA
from mereo.models.vision.cifar_resnet import CifarResNet
from mereo.models.vision.davit import DaViT
from mereo.models.vision.detector import Detector
from mereo.models.vision.embedding import EmbeddingNetwork
from mereo.models.vision.evit import EViT
from mereo.models.vision.halonet import HaloNet
from mereo.models.vision.hierarchical_spectformer import HierarchicalSpectFormer
from mereo.models.vision.maxvit import MaxViT
from mereo.models.vision.nat import NAT
from mereo.models.vision.ninformer import NiNformer
from mereo.models.vision.self_guided import SelfGuidedNetwork
from mereo.models.vision.shvit import SHViT
from mereo.models.vision.spectformer import SpectFormer
from mereo.models.vision.subspace_embedding import SubspaceEmbedding
from mereo.models.vision.transnext import TransNeXt
from mereo.models.vision.unet import UNet
from mereo.models.vision.vit import ViT
from mereo.models.vision.volo import VOLO

__all__ = [
    "CCA",
    "NAT",
    "VOLO",
    "BiFormer",
    "CaiT",
    "CifarResNet",
    "DaViT",
    "Detector",
    "EViT",
    "EmbeddingNetwork",
    "HaloNet",
    "HierarchicalSpectFormer",
    "MaxViT",
    "NiNformer",
    "SHViT",
    "SelfGuidedNetwork",
    "SpectFormer",
    "SubspaceEmbedding",
    "TransNeXt",
    "UNet",
    "ViT",
]
