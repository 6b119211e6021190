"""Networks of timm and torchvision under mereo's protocol, by names such as "timm:resnet18"."""

from mereo.models.plain.entry import register_libraries
from mereo.models.plain.network import PlainNetwork

register_libraries()

__all__ = ["PlainNetwork"]
