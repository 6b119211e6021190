"""Networks of timm and torchvision under mereo's protocol, by names such as "timm:resnet18", and networks as given."""

from mereo.models.plain.entry import register_libraries
from mereo.models.plain.network import PlainNetwork
from mereo.models.plain.own import own_entry
from mereo.models.registry import OWN, register_library

register_libraries()
register_library(OWN, own_entry)

__all__ = ["PlainNetwork"]
