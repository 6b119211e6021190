"""What tests of interventions share."""

from typing import Any

import pytest
import torch

import mereo


@pytest.fixture(scope="module")
def drawer() -> Any:
    """A TinyDiff of two layers, with parameters away from their start."""
    torch.manual_seed(0)
    model: Any = mereo.create_model("tinydiff", dim=16, depth=2, text_depth=1, num_heads=2, steps=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model
