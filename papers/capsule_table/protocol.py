"""The protocol of the table, written before its first run.

- Images: `DATA`, resized to SIDE x SIDE; LIMIT training images and a tenth of that to choose by, classes in proportion;
  all test images. Augmentation of the data set without rotations.
- Networks: the smallest preset of each of seventeen kinds of capsule network, two residual networks (one with the
  median of their parameters, one with the median of their multiply-adds), and two controls of each capsule network.
- Each network is trained by AdamW at RATES with seed 0, with the loss and the schedule of its own recipe, a cosine
  where the recipe waits for plateaus, for which EPOCHS are too few. The rate with the highest accuracy on the images to
  choose by is used for the other seeds. A network that still rises at this rate (its accuracy on these images grew by
  more than RISE in the last quarter of its epochs) is trained for twice the number of epochs, with all its seeds, and
  marked. Uniform couplings are trained at the rate of their network. A rate at which the loss of a seed does not stay
  finite is left out.
"""

from collections.abc import Mapping
from typing import Any

from mereo.training.config import TrainConfig
from mereo.training.families import upright_augmentation
from mereo.training.recipes import apply_recipe

DATA = ("mnist", "fashion_mnist", "solids:viewpoints=azimuth", "solids:viewpoints=elevation")
SIDE, LIMIT, BATCH, EPOCHS = 20, 4500, 64, 8
RATES, SEEDS, RISE = (1e-3, 3e-3, 1e-2), 3, 0.01
OWN, UNIFORM, LINEAR = "own", "uniform", "linear"
"""Couplings of a network: its own; held uniform in training and in use; a linear layer in place of its routing."""
CAPSULES = {
    "aa_capsnet": "aa_capsnet_28",
    "ar_capsnet": "ar_capsnet_small",
    "capsnet": "capsnet_middle",
    "da_capsnet": "da_capsnet_28",
    "deepcaps": "deepcaps_small",
    "efficient_capsnet": "efficient_capsnet",
    "inverted_dot_product_capsnet": "inverted_dot_product_capsnet_cifar10_simple128",
    "matrix_capsnet": "matrix_capsnet_68k",
    "ms_capsnet": "ms_capsnet_small",
    "mspcaps": "mspcaps_tiny",
    "mspcaps_head": "mspcaps_head",
    "orthcaps": "orthcaps_s",
    "parsecaps": "parsecaps_small",
    "rs_capsnet": "rs_capsnet_small",
    "self_routing_capsnet": "self_routing_capsnet_convnet",
    "sparse_capsnet": "sparse_caps_mnist",
    "variational_capsnet": "variational_capsnet_small",
}
"""Presets of the capsule networks, by kind."""
FAMILIES = {
    "iterated agreement": ("capsnet", "da_capsnet", "deepcaps", "ms_capsnet", "rs_capsnet", "sparse_capsnet"),
    "clusters of votes": ("matrix_capsnet", "variational_capsnet"),
    "attention": (
        "aa_capsnet", "ar_capsnet", "efficient_capsnet", "inverted_dot_product_capsnet", "mspcaps", "mspcaps_head",
        "orthcaps", "parsecaps",
    ),
    "a choice of each capsule": ("self_routing_capsnet",),
}  # fmt: skip
"""Kinds of capsule network by how they find their couplings, for the colours of the picture."""
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "matrix_capsnet": {"padding": 2, "cost_per_children": True},
    "mspcaps": {"patch_size": 2},
}
"""Arguments for presets that do not suit images of SIDE pixels. With patches of 4, the coarsest scale of MSPCaps has
one capsule there, and nothing is routed to the classes: found, and changed, when the first results stood."""
PLAIN = {"resnet_parameters": (27, 54, 108), "resnet_macs": (17, 34, 68)}
"""Widths of the residual networks."""
KINDS = (*PLAIN, *CAPSULES)
RECIPES = {
    "aa_capsnet": "aa_capsnet", "ar_capsnet": "ar_capsnet_digits", "capsnet": "capsnet_routing_study",
    "da_capsnet": "da_capsnet", "deepcaps": "deepcaps", "efficient_capsnet": "efficient_capsnet_mnist",
    "inverted_dot_product_capsnet": "inverted_dot_product", "matrix_capsnet": "matrix_capsnet_digits",
    "ms_capsnet": "ms_capsnet", "mspcaps": "mspcaps_paper", "orthcaps": "orthcaps", "parsecaps": "parsecaps_digits",
    "rs_capsnet": "rs_capsnet", "self_routing_capsnet": "self_routing", "variational_capsnet": "variational_bayes",
}  # fmt: skip
"""Where the loss and the schedule of a kind are from; others have the loss of the network and a cosine."""
TAKEN = ("loss", "reconstruction_weight", "schedule", "decay_rate", "decay_steps")
"""Fields of a recipe that are taken."""


def controls(kind: str) -> tuple[str, ...]:
    """The forms in which a kind of network is trained."""
    return (OWN,) if kind in PLAIN else (OWN, UNIFORM, LINEAR)


def network_of(kind: str, control: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a network."""
    if kind in PLAIN:
        return "resnet20", {"blocks": 2, "widths": PLAIN[kind]}
    arguments = dict(ARGUMENTS.get(kind, {}))
    if control == LINEAR:
        return f"linear:{CAPSULES[kind]}", {"network_args": arguments} if arguments else {}
    return (CAPSULES[kind] if control == OWN else f"uniform:{CAPSULES[kind]}"), arguments


def configuration(
    kind: str, control: str, data: str, rate: float, seed: int, epochs: int, given: Mapping[str, Any]
) -> TrainConfig:
    """The configuration of one training.

    Args:
        kind, control: the network and its couplings.
        data, rate, seed, epochs: of the training.
        given: further fields: data_root, limit, device and output.
    """
    model, arguments = network_of(kind, control)
    own: dict[str, Any] = {}
    if kind in RECIPES and control != LINEAR:
        recipe = apply_recipe(RECIPES[kind], data=data)
        own = {name: getattr(recipe, name) for name in TAKEN}
        if recipe.schedule == "plateau":
            own["schedule"] = "cosine"
    fields: dict[str, Any] = {
        **own, "model": model, "model_args": arguments, "data": data, "img_size": SIDE, "limit": LIMIT,
        "epochs": epochs, "batch_size": BATCH, "lr": rate, "seed": seed, "tensorboard": False, "resume": True,
        "device": "cpu",
        "augment": upright_augmentation(data, given.get("data_root")),
        "name": f"{kind}-{control}-{rate:g}-seed{seed}-epochs{epochs}",
    }  # fmt: skip
    return TrainConfig().replace(**{**fields, **given})
