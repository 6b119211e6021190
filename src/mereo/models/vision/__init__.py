"""Vision backbones, one file each with its presets."""

from mereo.models.vision.cifar_resnet import CifarResNet as CifarResNet
