"""Exports trained networks: folders for the hub and timm, ONNX, programs of torch.export."""

from mereo.export.folder import save_pretrained
from mereo.export.forms import FORMS, Exported
from mereo.export.hub import from_pretrained, push_to_hub
from mereo.export.programs import lower
from mereo.export.writing import export_model

__all__ = [
    "FORMS",
    "Exported",
    "export_model",
    "from_pretrained",
    "lower",
    "push_to_hub",
    "save_pretrained",
]
