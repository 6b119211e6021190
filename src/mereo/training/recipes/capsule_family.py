"""Recipes of the other capsule networks."""

from typing import Any

from mereo.training.recipes.recipe import CIFAR10, DIGITS, Recipe

# Their reconstruction loss is a mean over the pixels and has the weight 0.4; ours is a sum. Their zoom of 0.1, which
# also shrinks, and rotation by 0.1 degrees are left out, and the flips of digits.
_DEEPCAPS: dict[str, Any] = {
    "model": "deepcaps_64", "data": "cifar10", "epochs": 100, "batch_size": 256, "optimizer": "adam",
    "lr": 1e-3, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.5**0.1, "warmup_epochs": 0.0,
    "reconstruction_weight": 0.4 / 12288, "augment": ("shift=6", "flip"),
}  # fmt: skip
_DEEPCAPS_BY_DATA: dict[str, dict[str, Any]] = {
    "mnist": {"model": "deepcaps_28", "reconstruction_weight": 0.4 / 784, "augment": ("shift=3",)},
    "fashion_mnist": {"model": "deepcaps_28", "reconstruction_weight": 0.4 / 784, "augment": ("shift=3", "flip")},
    "digits": {
        **DIGITS, "model": "deepcaps_small", "img_size": 16, "lr": 2e-3, "weight_decay": 0.0, "augment": ("crop=1",),
        "reconstruction_weight": 0.0015,
    },
}  # fmt: skip
_PLATEAU: dict[str, Any] = {"schedule": "plateau", "plateau_factor": 0.5, "plateau_patience": 10}

RECIPES: dict[str, Recipe] = {
    "aa_capsnet": Recipe(
        "AA-CapsNet: Adam at a constant rate, cross-entropy, no reconstruction.",
        "ours; the paper was not available: Pucci, Micheloni, Martinel 2021, as reported in arXiv:2508.16922",
        {
            "model": "aa_capsnet_28", "data": "mnist", "epochs": 50, "batch_size": 128, "optimizer": "adam", "lr": 1e-3,
            "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0, "reconstruction_weight": 0.0,
            "augment": ("shift=2",),
        },
        {
            "svhn": {"model": "aa_capsnet_32", "augment": ("crop=4",)},
            "cifar10": {"model": "aa_capsnet_32", "augment": ("crop=4", "flip"), **CIFAR10},
            "digits": DIGITS,
        },
        {"mnist": 99.34, "svhn": 92.13, "cifar10": 71.60},
    ),
    "da_capsnet": Recipe(
        "DA-CapsNet: Adam at a constant rate, margin loss and reconstruction, as CapsNet.",
        "doi:10.1038/s41598-020-68453-w, as reported in arXiv:2508.16922; optimiser, epochs and augmentation are ours",
        {
            "model": "da_capsnet_28", "data": "mnist", "epochs": 50, "batch_size": 128, "optimizer": "adam", "lr": 1e-3,
            "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0, "loss": "margin",
            "reconstruction_weight": 0.0005, "augment": ("shift=2",),
        },
        {
            "svhn": {"model": "da_capsnet_32", "augment": ("crop=4",)},
            "cifar10": {"model": "da_capsnet_32", "augment": ("crop=4", "flip")},
            "digits": DIGITS,
        },
        {"mnist": 99.53, "svhn": 94.82, "cifar10": 85.47},
    ),
    "sparse_caps": Recipe(
        "Latent capsules that compete to rebuild shifted digits, without labels: 30,000 steps of Adam.",
        "arXiv:1804.06094 and the authors' code",
        {
            "model": "sparse_caps_mnist", "task": "reconstruction", "data": "mnist", "epochs": 64, "batch_size": 128,
            "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.96,
            "decay_steps": 2000, "warmup_epochs": 0.0, "min_lr": 1e-6, "augment": ("shift=2",),
        },
        {"digits": {"epochs": 40, "batch_size": 32}},
    ),
    "sparse_caps_affnist": Recipe(
        "The same on digits padded to 40x40 and shifted by up to 6 pixels, tested on affNIST.",
        "arXiv:1804.06094 and the authors' code",
        {
            "model": "sparse_caps_affnist", "task": "reconstruction", "data": "affnist", "epochs": 64,
            "batch_size": 128, "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "exponential",
            "decay_rate": 0.96, "decay_steps": 2000, "warmup_epochs": 0.0, "min_lr": 1e-6, "augment": ("shift=6",),
        },
    ),
    "matrix_capsnet_paper": Recipe(
        "Matrix capsules as published on smallNORB: Adam, decaying smoothly, spread loss with a rising margin.",
        "https://openreview.net/forum?id=HJWLfGWRb, section 5, and the authors' answers in its discussion",
        {
            "model": "matrix_capsnet_310k", "data": "smallnorb", "epochs": 300, "batch_size": 64, "optimizer": "adam",
            "lr": 3e-3, "weight_decay": 2e-7, "schedule": "exponential", "decay_rate": 0.96, "decay_steps": 20_000,
            "warmup_epochs": 0.0, "loss": "spread_sigmoid", "augment": ("brightness=0.25", "contrast=0.5:1.5"),
        },
        reported={"smallnorb": 98.2, "mnist": 99.56},
    ),
    "matrix_capsnet_digits": Recipe(
        "Matrix capsules on 1,797 handwritten digits, in some minutes on two CPU cores.",
        "ours",
        # Few children vote for a class here, so that without cost_per_children all activations would stay near 0.5.
        {
            **DIGITS, "model": "matrix_capsnet_68k", "data": "digits", "epochs": 30, "lr": 5e-3, "min_lr": 1e-5,
            "loss": "spread", "model_args": {"padding": 2, "cost_per_children": True},
        },
    ),
    # This recipe and the next one: the authors use plain momentum, our optimiser "sgd" uses Nesterov's.
    "self_routing": Recipe(
        "Self-routing capsules as published on CIFAR-10; where the authors divide the rate twice by 10, a cosine.",
        "Hahn, Pyeon, Kim, NeurIPS 2019, and the authors' code",
        {
            "model": "self_routing_capsnet_resnet20", "data": "cifar10", "epochs": 350, "batch_size": 64,
            "optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-4, "schedule": "cosine",
            "warmup_epochs": 0.0, "augment": ("crop=4", "flip"),
        },
        {
            "svhn": {"epochs": 200, "augment": ("crop=4",)},
            "smallnorb": {
                "model": "self_routing_capsnet_convnet", "epochs": 200,
                "augment": ("brightness=0.125", "contrast=0.7:1.3"),
            },
            "digits": {
                **DIGITS, "model": "self_routing_capsnet_resnet20", "img_size": 16, "epochs": 10, "lr": 2e-3,
            },
        },
        {"cifar10": 91.83, "svhn": 96.66},
    ),
    "inverted_dot_product": Recipe(
        "Capsules with inverted dot-product routing as published; for two divisions of the rate by 10, a cosine.",
        "arXiv:2002.04764 and the authors' code",
        {
            "model": "inverted_dot_product_capsnet_cifar10_resnet", "data": "cifar10", "epochs": 350, "batch_size": 128,
            "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine",
            "warmup_epochs": 0.0, "augment": ("crop=4", "flip"),
        },
        {
            "digits": {
                **DIGITS, "model": "inverted_dot_product_capsnet_cifar10_simple128", "img_size": 16, "epochs": 10,
                "lr": 1e-3, "weight_decay": 5e-4,
            },
        },
        {"cifar10": 95.14},
    ),
    "variational_bayes": Recipe(
        "Capsules with variational Bayes routing as the authors' code trains them on smallNORB.",
        "arXiv:1905.11455 and the authors' code",
        {
            "model": "variational_capsnet_base", "data": "smallnorb", "epochs": 300, "batch_size": 128,
            "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0,
            "augment": ("none",),
        },
        {"digits": {**DIGITS, "model": "variational_capsnet_small", "epochs": 10, "weight_decay": 0.0}},
        {"smallnorb": 98.7},
    ),
    "deepcaps": Recipe(
        "DeepCaps, the first of its two runs: Adam, the rate halved every 10 epochs, margin loss and reconstruction.",
        "arXiv:1904.09546 and the authors' code",
        _DEEPCAPS,
        _DEEPCAPS_BY_DATA,
        {"cifar10": 91.01, "svhn": 97.16, "fashion_mnist": 94.46, "mnist": 99.72},
    ),
    "deepcaps_strict_margins": Recipe(
        "DeepCaps, the second of its two runs: the same with stricter margins; give the first as --weights.",
        "arXiv:1904.09546 and the authors' code",
        _DEEPCAPS | {"loss": "hard_margin"},
        _DEEPCAPS_BY_DATA,
        {"cifar10": 91.01, "svhn": 97.16, "fashion_mnist": 94.46, "mnist": 99.72},
    ),
    "ar_capsnet": Recipe(
        "AR-CapsNet as its authors' code trains it: RMSprop, the rate falling as 1 / (1 + step / 10,000).",
        "arXiv:1907.01750 and the authors' code",
        # Their reconstruction loss is a mean over the pixels with the weight 0.3; ours is a sum. On CIFAR-10 they halve
        # the rate once more from epoch 51 on.
        {
            "model": "ar_capsnet_mnist", "data": "mnist", "epochs": 20, "batch_size": 100, "optimizer": "rmsprop",
            "lr": 1e-3, "weight_decay": 0.0, "schedule": "inverse", "decay_steps": 10_000, "warmup_epochs": 0.0,
            "reconstruction_weight": 0.3 / 784, "augment": ("none",), "validation_fraction": 0.1,
        },
        {
            "cifar10": {"model": "ar_capsnet_cifar10", "epochs": 200, "reconstruction_weight": 0.3 / 3072},
            "affnist": {
                "model": "ar_capsnet_affnist", "reconstruction_weight": 0.3 / 1600, "augment": ("shift=8", "flip"),
            },
        },
        {"mnist": 99.46, "cifar10": 88.61},
    ),
    "ar_capsnet_digits": Recipe(
        "A small AR-CapsNet on 1,797 handwritten digits, in a minute on a CPU core.",
        "ours",
        {
            "model": "ar_capsnet_small", "data": "digits", "epochs": 15, "batch_size": 32, "optimizer": "adamw",
            "lr": 3e-3, "weight_decay": 1e-4, "schedule": "cosine", "warmup_epochs": 1.0,
            "reconstruction_weight": 0.3 / 256, "augment": ("crop=1",), "validation_fraction": 0.0,
        },
    ),
    "rs_capsnet": Recipe(
        "RS-CapsNet with the usual crops and flips; the authors' schedule could not be confirmed.",
        "ours, for doi:10.1109/ACCESS.2020.2992655",
        {
            "model": "rs_capsnet", "data": "cifar10", "epochs": 100, "batch_size": 128, "optimizer": "adam",
            "lr": 1e-3, "weight_decay": 0.0, "schedule": "cosine", "warmup_epochs": 0.0,
            "reconstruction_weight": 0.0005, "augment": ("crop=4", "flip"),
        },
        {
            "svhn": {"augment": ("crop=4",)},
            "digits": {"model": "rs_capsnet_small", "epochs": 20, "batch_size": 64, "augment": ("crop=2",)},
        },
        {"cifar10": 89.81, "fashion_mnist": 93.51},
    ),
    "ms_capsnet": Recipe(
        "MS-CapsNet as the authors' code trains it; the rate of capsule dropout, 0.1, is ours.",
        "https://doi.org/10.1109/LSP.2018.2873892 and the authors' code",
        # Their random crops are squares.
        {
            "model": "ms_capsnet_cifar10", "data": "cifar10", "epochs": 50, "batch_size": 128, "optimizer": "adam",
            "lr": 1e-3, "weight_decay": 1e-5, "schedule": "constant", "warmup_epochs": 0.0, "loss": "margin",
            "augment": ("none",),
        },
        {
            "cifar10": {"augment": ("zoom=0.8:1", "flip"), **CIFAR10},
            "fashion_mnist": {"model": "ms_capsnet_fashion"},
            "digits": {"model": "ms_capsnet_small", **DIGITS, "img_size": 24},
        },
        {"fashion_mnist": 92.7, "cifar10": 75.2},
    ),
    "parsecaps": Recipe(
        "ParseCaps: AdamW, five epochs of warm-up, margin loss, the rate halved on plateaus.",
        "arXiv:2411.01564 and the authors' code",
        # Their rate is 2.5e-3 and rises to twice that.
        {
            "model": "parsecaps", "data": "cifar10", "epochs": 300, "batch_size": 128, "optimizer": "adamw",
            "lr": 5e-3, "weight_decay": 5e-4, **_PLATEAU, "warmup_epochs": 5.0, "warmup_start": 0.5,
            "min_lr": 1e-6, "loss": "margin", "reconstruction_weight": 0.0005, "augment": ("crop=4", "flip"),
        },
        {"cifar10": CIFAR10, "mnist": {"augment": ("shift=2",)}},
    ),
    "parsecaps_digits": Recipe(
        "A small ParseCaps on 1,797 handwritten digits, in some minutes on a CPU core; cross-entropy of the lengths.",
        "ours",
        # Class capsules start at a length of 2.8, for which the margins 0.1 and 0.9 are too small.
        {
            "model": "parsecaps_small", "data": "digits", "epochs": 12, "batch_size": 32, "optimizer": "adamw",
            "lr": 3e-3, "weight_decay": 5e-4, "schedule": "cosine", "warmup_epochs": 1.0, "loss": "cross_entropy",
            "augment": ("rotate=10", "crop=4"), "validation_fraction": 0.0,
        },
    ),
    "orthcaps": Recipe(
        "OrthCaps: AdamW, warm-up, 300 epochs, the rate halved on plateaus.",
        "arXiv:2403.13351 and the authors' later code, not confirmed",
        {
            "model": "orthcaps_s_cifar", "data": "cifar10", "epochs": 300, "batch_size": 128, "optimizer": "adamw",
            "lr": 2.5e-3, "weight_decay": 5e-4, **_PLATEAU, "warmup_epochs": 5.0, "min_lr": 1e-6,
            "loss": "margin", "augment": ("crop=4", "flip"),
        },
        {
            "cifar10": CIFAR10,
            "svhn": {"augment": ("crop=4",)},
            "mnist": {"model": "orthcaps_s", "img_size": 32, "augment": ("shift=2",)},
            "fashion_mnist": {"model": "orthcaps_s", "img_size": 32, "augment": ("crop=2", "flip")},
            "digits": {"model": "orthcaps_s", **DIGITS},
        },
        {"mnist": 99.68, "svhn": 96.26, "cifar10": 86.84},
    ),
}  # fmt: skip
