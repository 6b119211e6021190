"""Speed and memory of the networks of the table, in turn in one process."""

import torch
from torch import Tensor

from mereo.bench.counting import network_work
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work
from mereo.bench.suites.networks import images_and_labels, workload
from mereo.models import VisionModel, create_model
from papers.capsule_table.controls import register_controls
from papers.capsule_table.protocol import BATCH, KINDS, OWN, SIDE, controls, network_of

CLASSES, CHANNELS = 10, 1


def make_network(kind: str, control: str) -> VisionModel:
    """A network of the table with random weights, for the images of its protocol."""
    register_controls()
    name, arguments = network_of(kind, control)
    return create_model(name, num_classes=CLASSES, in_chans=CHANNELS, img_size=SIDE, **arguments)


def inputs(setting: Setting, mode: Mode) -> tuple[Tensor, ...]:
    """Random images with labels."""
    return images_and_labels(setting, (CHANNELS, SIDE, SIDE), CLASSES)


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Every kind of network that has these couplings; plain networks in all cases."""
    control = setting.word("couplings")
    return tuple(_contender(kind, control if control in controls(kind) else OWN, setting) for kind in KINDS)


def _contender(kind: str, control: str, setting: Setting) -> Contender:
    def work(mode: Mode) -> Work:
        images = torch.rand(2, CHANNELS, SIDE, SIDE, device=setting.device)
        return network_work(make_network(kind, control).to(setting.device), images, setting.size("batch"), mode)

    return Contender(kind, lambda mode: workload(make_network(kind, control), setting, mode), "unchecked", work=work)


CAPSULE_NETWORKS = Suite(
    "capsule_networks",
    "the networks of the table of capsule networks: prediction and training steps of 64 images, and memory",
    "images (batch, 1, 20, 20) and labels -> scores (batch, 10)",
    {"batch": BATCH, "couplings": OWN},
    inputs,
    contenders,
    lambda setting, mode: None,
    quick={"batch": 4},
    memory=("forward", "training"),
    threads=(1,),
)
"""`--sizes couplings=uniform` and `couplings=linear` for the controls."""
