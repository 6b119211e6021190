"""A network of timm's, trained here, as a folder that timm reads without mereo."""

import json
from pathlib import Path

from mereo.errors import UsageError
from mereo.export.folder import CONFIG, WEIGHTS
from mereo.files import write_atomically
from mereo.models import PlainNetwork
from mereo.models.weights import check_finite, save_tensors


def check_for_timm(model: PlainNetwork) -> None:
    """UsageError for a network that is not timm's."""
    if model.library_name != "timm":
        raise UsageError(
            f"to is 'timm', and {model.config['model']} is a network of {model.library_name}; give --to hub, onnx or"
            " torch."
        )


def save_for_timm(model: PlainNetwork, folder: Path) -> None:
    """Write config.json and weights under timm's own names: `timm.create_model("local-dir:FOLDER")` reads them."""
    check_for_timm(model)
    left_out = ("architecture", "paper_ids", "first_conv", "classifier", "fixed_input_size")
    own = dict(model.network.pretrained_cfg)
    cfg = {key: value for key, value in model.pretrained_cfg.items() if key not in left_out}
    cfg |= {key: own[key] for key in ("first_conv", "classifier") if key in own}
    arguments = {name: model.config["args"][name] for name in ("drop_rate", "drop_path_rate")}
    content = {
        "architecture": model.network_name,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "pretrained_cfg": cfg,
        "model_args": {name: rate for name, rate in arguments.items() if rate},
    }
    if model.class_names:
        content["label_names"] = list(model.class_names)
    state = model.network.state_dict()
    check_finite(state, folder / WEIGHTS)
    save_tensors(folder / WEIGHTS, state, {})
    write_atomically(folder / CONFIG, (json.dumps(content, indent=2) + "\n").encode())
