"""A network of timm's, trained here, as a folder that timm reads without mereo."""

import json
from pathlib import Path

from mereo.export.folder import CONFIG, WEIGHTS
from mereo.files import write_atomically
from mereo.models.weight_sources import TimmNetwork
from mereo.models.weights import check_finite, save_tensors


def save_for_timm(network: TimmNetwork, folder: Path) -> None:
    """Write config.json and weights under timm's own names: `timm.create_model("local-dir:FOLDER")` reads them."""
    check_finite(network.state, folder / WEIGHTS)
    save_tensors(folder / WEIGHTS, network.state, {})
    write_atomically(folder / CONFIG, (json.dumps(network.config, indent=2) + "\n").encode())
