"""Sparse iterative inference on a trained CapsNet: the paper's figure, its energies, clamped labels as a classifier.

The networks are the runs `routed` and `unrouted` of kiefer_routing where they are finished and no option of training
is given; else two narrow ones are trained first.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.core import lengths
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.generative.predictive_coding import Inference, infer, label_energies
from mereo.models import CapsuleClassifier, load
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder
from mereo.training.studies import Study, Variant, finish_runs, plan_runs
from papers.common.fitting import progress
from papers.common.pictures import draw_curves
from papers.common.settings import Settings
from papers.common.studies import configurations
from papers.kiefer_generative_capsules.inference_pictures import draw_activity
from papers.kiefer_generative_capsules.sparsity import hoyer_sparsity, winner_share
from papers.kiefer_generative_capsules.studies import KIEFER_ROUTING
from papers.kiefer_generative_capsules.test_images import take_test_images

PENALTY, STEPS = 1.0, 500
IMAGES, FEW = 64, 8
"""Number of test images, and their number if a network of the published size runs on a CPU."""
NARROW = {"conv_channels": 32, "primary_types": 8, "decoder": False}
NETWORKS = Study(
    "The two networks that inference is compared on.",
    "ours",
    "capsnet_routing_study",
    {
        "routed": Variant(model_args={**NARROW, "routing_steps": 4, "learned_prior": True}),
        "unrouted": Variant(model_args={**NARROW, "routing_steps": 0}),
    },
)
TRAINING = ("data", "data_root", "epochs", "limit", "batch_size", "device")
SHORT = {"digits": {"epochs": 20, "batch_size": 32}}
"""The training of the narrow networks by data set; two epochs elsewhere."""
CONDITIONS: dict[str, tuple[dict[str, Any], tuple[float, float] | None]] = {
    "inference": ({}, None),
    "inference, L1": ({"penalty": PENALTY}, None),
    "inference, L1 proximal": ({"penalty": PENALTY, "method": "prox"}, None),
    "inference, no ReLU": ({"rectify": False}, (7.8, 3.65)),
    "inference, L1, no ReLU": ({"penalty": PENALTY, "rectify": False}, (16.9, 7.11)),
}
"""Name -> (arguments of `infer`, the energies the paper's code printed for one digit: first and last)."""
PICTURES = ("activity.png", "energy.png")
NOTES = [
    "The label is clamped, so a longest capsule of the true class proves nothing about inference; the classifier below"
    " is not given the label.",
    "The paper's code leaves out the ReLU of the first convolution in inference; only then are its class capsules"
    " spread before the descent, and only then are its energies comparable.",
]


def run(settings: Settings) -> dict[str, Any]:
    """Two pictures and two tables on some test images."""
    device = settings.chosen_device()
    folders = _networks(settings)
    routed, unrouted = (_load(folders[name].last, device) for name in ("routed", "unrouted"))
    own = folders["unrouted"].path.is_relative_to(settings.folder)
    count = settings.images or (IMAGES if own or device.type != "cpu" else FEW)
    batch = take_test_images(unrouted, str(settings.data), settings.data_root, count, device)
    inferences = {
        name: infer(unrouted, batch.images, batch.labels, steps=STEPS, **how, progress=progress(settings.say, name))
        for name, (how, _) in CONDITIONS.items()
    }
    with torch.no_grad():
        forward = {
            "forward, routed": routed.capsules(batch.images).pose,
            "forward, unrouted": unrouted.capsules(batch.images).pose,
        }
    poses = {**forward, **{name: inference.classes for name, inference in inferences.items()}}
    shown = {name: p[0].cpu() for name, p in poses.items() if "proximal" not in name}
    draw_activity(batch.images[0].cpu(), int(batch.labels[0]), shown, settings.folder / PICTURES[0])
    energies = [(name, f.energy.mean(0).tolist()) for name, f in inferences.items()]
    draw_curves(
        {f"{name}: {values[0]:.2f} to {values[-1]:.2f}": dict(enumerate(values)) for name, values in energies},
        "step", "mean energy of an image", settings.folder / PICTURES[1], size=(8.4, 3.8), marker="",
        legend={"fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1, 1)}, yscale="log",
    )  # fmt: skip
    where = f"{len(batch.labels)} test images"
    return {
        "networks": {name: str(folder.path) for name, folder in folders.items()},
        "tables": {
            f"Class capsules of {where}": [_row(name, poses[name], batch, inferences.get(name)) for name in poses],
            f"Accuracy on {where}": _accuracies(unrouted, forward, batch, settings.say),
        },
        "notes": NOTES,
        "pictures": list(PICTURES),
    }


def _load(path: Path, device: torch.device) -> CapsuleClassifier:
    model = load(path, device)
    if not isinstance(model, CapsuleClassifier):
        raise UsageError(f"{path} holds a {type(model).__name__}; give the run of a capsule network.")
    return model


def _networks(settings: Settings) -> dict[str, RunFolder]:
    """The runs of the routed and the unrouted network, which are trained if they do not exist."""
    asked = settings.given(TRAINING)
    output = str(settings.folder.parent)
    plan = ("kiefer_routing", KIEFER_ROUTING, 1, output, {"data": settings.data}, list(NETWORKS.variants))
    published = _folders(configurations(*plan))
    if not asked.keys() & {"epochs", "limit", "batch_size"} and all(f.results.exists() for f in published.values()):
        settings.say(f"networks from {published['unrouted'].path.parent}")
        return published
    how = {"epochs": 2, **SHORT.get(str(settings.data), {}), **asked}
    configs = plan_runs(NETWORKS, "networks", 1, str(settings.folder), how)
    finish_runs(configs, settings.say)
    return _folders(configs)


def _folders(configs: Mapping[tuple[str, int], TrainConfig]) -> dict[str, RunFolder]:
    return {label: RunFolder(Path(config.output) / str(config.name)) for (label, _), config in configs.items()}


def _row(name: str, poses: Tensor, batch: Batch, inference: Inference | None) -> dict[str, Any]:
    length = lengths(poses)
    energy = None if inference is None else inference.energy.mean(0)
    paper = CONDITIONS[name][1] if name in CONDITIONS else None
    return {
        "condition": name,
        "F first": None if energy is None else energy[0].item(),
        "F last": None if energy is None else energy[-1].item(),
        "paper's": None if paper is None else f"{paper[0]} to {paper[1]}",
        "winner": winner_share(length).mean().item(),
        "hoyer": hoyer_sparsity(length).mean().item(),
        "true longest %": _percent(length, batch.labels),
    }


def _accuracies(
    unrouted: CapsuleClassifier, forward: dict[str, Tensor], batch: Batch, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows = [{"classifier": name, "%": _percent(lengths(p), batch.labels)} for name, p in forward.items()]
    for title, penalty in (("ten clamped labels", 0.0), ("ten clamped labels, L1", PENALTY)):
        energies = label_energies(unrouted, batch.images, steps=STEPS, penalty=penalty, progress=progress(say, title))
        rows.append({"classifier": title, "%": _percent(-energies, batch.labels)})
    return rows


def _percent(scores: Tensor, labels: Tensor) -> float:
    return 100 * (scores.argmax(1) == labels).float().mean().item()
