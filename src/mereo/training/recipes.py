"""Published training recipes as data, to be run as they are or with changes.

A recipe changes fields of `TrainConfig`; `by_data` holds the differences for single data sets. The first
network is the one it was published for. This module imports no torch.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mereo.errors import unknown
from mereo.training.config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
        summary: one sentence.
        source: where it is from.
        reported: the test accuracy its source reports, in percent, by data set.
        changes: fields of the configuration.
        by_data: further fields, by data set.
    """

    summary: str
    source: str
    changes: Mapping[str, Any]
    by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reported: Mapping[str, float] = field(default_factory=dict)


CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}

RECIPES: dict[str, Recipe] = {
    "mspcaps_paper": Recipe(
        "MSPCaps as published: AdamW, warm-up, cosine, 300 epochs (100 on MNIST).",
        "arXiv:2508.16922",
        {
            "model": "mspcaps_tiny", "data": "cifar10", "epochs": 300, "batch_size": 128, "optimizer": "adamw",
            "lr": 5e-4, "weight_decay": 1e-4, "schedule": "cosine", "warmup_epochs": 5.0, "warmup_start": 0.1,
            "min_lr": 1e-6, "loss": "margin", "reconstruction_weight": 0.0,
        },
        {
            "mnist": {"epochs": 100, "augment": ("rotate=15",)},
            "fashion_mnist": {"lr": 1e-4, "augment": ("crop=4", "flip")},
            "svhn": {"augment": ("rotate=15", "crop=4"), "model_args": {"coupling_drop": 0.0}},
            "cifar10": {"augment": ("crop=4", "flip"), **CIFAR10},
        },
        {"mnist": 99.69, "svhn": 95.79, "cifar10": 88.71},
    ),
    "mspcaps_short": Recipe(
        "MSPCaps in a few hours on a CPU: a higher rate, fewer epochs, the last epoch's weights.",
        "ours",
        {
            "model": "mspcaps_tiny", "data": "mnist", "epochs": 20, "batch_size": 128, "optimizer": "adamw",
            "lr": 2e-3, "weight_decay": 1e-4, "schedule": "cosine", "warmup_epochs": 1.0, "min_lr": 1e-6,
            "loss": "margin", "reconstruction_weight": 0.0, "validation_fraction": 0.0,
        },
        {
            "mnist": {"augment": ("rotate=10", "shift=2")},
            "fashion_mnist": {"augment": ("crop=2", "flip")},
            "cifar10": {"augment": ("crop=4", "flip"), **CIFAR10},
        },
    ),
    "capsnet_paper": Recipe(
        "CapsNet as its authors' code trains it on MNIST: Adam, decaying smoothly, shifts of 2 pixels.",
        "arXiv:1710.09829, section 5, and the authors' code",
        {
            "model": "capsnet", "data": "mnist", "epochs": 640, "batch_size": 128, "optimizer": "adam", "lr": 1e-3,
            "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.96, "decay_steps": 2000,
            "warmup_epochs": 0.0, "min_lr": 1e-6, "reconstruction_weight": 0.0005, "augment": ("shift=2",),
        },
        {"cifar10": {"model": "capsnet_32"}, "svhn": {"model": "capsnet_svhn"}},
        {"mnist": 99.75},
    ),
    "kiefer": Recipe(
        "CapsNet with and without routing, 13 epochs of Adam; the reconstruction loss has almost no weight.",
        "arXiv:2209.02567, appendix A, and the authors' code",
        # Both their losses are means, over classes and over pixels, and ours are sums. This is ten times their
        # objective, which does not matter to Adam. They have no warm-up; without it the first steps of Adam make the
        # primary
        # capsules of an unrouted network saturate, and it learns nothing for hundreds of steps.
        {
            "model": "capsnet", "data": "mnist", "epochs": 13, "batch_size": 128, "optimizer": "adam", "lr": 1e-3,
            "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 1.0, "augment": ("crop=2",),
            "reconstruction_weight": 0.0005 * 10 / 784, "validation_fraction": 0.0,
        },
        {"digits": {"warmup_epochs": 3.0}},
    ),
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
        },
        {"mnist": 99.53, "svhn": 94.82, "cifar10": 85.47},
    ),
    "capsnet_cifar": Recipe(
        "CapsNet on random 24x24 crops of CIFAR-10, one network of the paper's seven.",
        "arXiv:1710.09829, section 7, and the authors' code",
        {
            "model": "capsnet_cifar", "data": "cifar10", "epochs": 640, "batch_size": 128, "optimizer": "adam",
            "lr": 1e-3, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.96, "decay_steps": 2000,
            "warmup_epochs": 0.0, "min_lr": 1e-6, "reconstruction_weight": 0.0,
            "augment": ("none",),
        },
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
        "The same at 40x40 with shifts of 6 pixels; the data is a folder of digits padded by 6 pixels on every side.",
        "arXiv:1804.06094 and the authors' code",
        {
            "model": "sparse_caps_affnist", "task": "reconstruction", "data": "mnist", "epochs": 64, "batch_size": 128,
            "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.96,
            "decay_steps": 2000, "warmup_epochs": 0.0, "min_lr": 1e-6, "augment": ("shift=6",),
        },
    ),
    "capsnet_multimnist": Recipe(
        "CapsNet on two overlaid digits; both are reconstructed.",
        "arXiv:1710.09829, section 6",
        {
            "model": "capsnet_multimnist", "data": "multimnist", "epochs": 640, "batch_size": 128,
            "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.96,
            "decay_steps": 2000, "warmup_epochs": 0.0, "min_lr": 1e-6, "reconstruction_weight": 0.0005,
            "augment": ("none",),
        },
        reported={"multimnist": 94.8},
    ),
    "efficient_capsnet_mnist": Recipe(
        "Efficient-CapsNet as published on MNIST: Adam, rate times 0.97 per epoch, its own augmentation.",
        "arXiv:2101.12491 and the authors' code",
        {
            "model": "efficient_capsnet", "data": "mnist", "epochs": 150, "batch_size": 16, "optimizer": "adam",
            "lr": 5e-4, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.97, "warmup_epochs": 0.0,
            "min_lr": 5e-5, "reconstruction_weight": 0.0005, "augment": ("efficient_mnist",),
            # Their pixels are divided by 256.
            "mean": (0.0,), "std": (256 / 255,),
        },
        reported={"mnist": 99.74},
    ),
    "efficient_capsnet_multimnist": Recipe(
        "Efficient-CapsNet on two overlaid digits; reconstruction weight 0.196 for each.",
        "arXiv:2101.12491 and the authors' code",
        {
            "model": "efficient_capsnet_multimnist", "data": "multimnist:max_shift=6", "epochs": 150, "batch_size": 64,
            "optimizer": "adam", "lr": 5e-4, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.97,
            "warmup_epochs": 0.0, "min_lr": 5e-5, "reconstruction_weight": 0.196 / 1296, "augment": ("none",),
        },
        reported={"multimnist": 94.9},
    ),
    "efficient_capsnet_smallnorb": Recipe(
        "Efficient-CapsNet on smallNORB.",
        "arXiv:2101.12491 and the authors' code",
        {
            "model": "efficient_capsnet_smallnorb", "data": "smallnorb", "epochs": 200, "batch_size": 16,
            "optimizer": "adam", "lr": 5e-4, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.97,
            "warmup_epochs": 0.0, "min_lr": 5e-5, "reconstruction_weight": 0.392 / 4608,
            "augment": ("brightness=0.25", "contrast=0.5:1.5"),
        },
        reported={"smallnorb": 97.46},
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
            "model": "matrix_capsnet_68k", "data": "digits", "epochs": 30, "batch_size": 32, "optimizer": "adamw",
            "lr": 5e-3, "weight_decay": 1e-4, "schedule": "cosine", "warmup_epochs": 1.0, "min_lr": 1e-5,
            "loss": "spread", "augment": ("rotate=10", "crop=2"), "validation_fraction": 0.0, "img_size": 20,
            "model_args": {"padding": 2, "cost_per_children": True},
        },
    ),
    "cait": Recipe(
        "CaiT without distillation: 400 epochs of AdamW with RandAugment, mixup, cutmix and an average of the weights.",
        "arXiv:2103.17239, section 5.1, and DeiT, arXiv:2012.12877, table 9, not every number confirmed; average: ours",
        # A rate of 5e-4 for every 512 images. Stochastic depth is an argument of the presets.
        {
            "model": "cait_xxs24_224", "data": "imagenet", "epochs": 400, "batch_size": 1024, "optimizer": "adamw",
            "lr": 1e-3, "weight_decay": 0.05, "weight_decay_norm": False, "schedule": "cosine", "warmup_epochs": 5.0,
            "warmup_start": 1e-3, "min_lr": 1e-5, "loss": "cross_entropy", "label_smoothing": 0.1, "mixup": 0.8,
            "cutmix": 1.0, "ema_decay": 0.99996,
            "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"),
        },
    ),
    "davit": Recipe(
        "DaViT-Tiny from scratch: AdamW, 300 epochs, 20 of warm-up, mixup and cutmix.",
        "arXiv:2204.03645, section 4.1; not confirmed: augmentation, which is that of DeiT, arXiv:2012.12877",
        # The small and the base network have drop_path_rate 0.2 and 0.4.
        {
            "model": "davit_tiny", "data": "imagenet", "epochs": 300, "batch_size": 1024, "optimizer": "adamw",
            "lr": 1e-3, "weight_decay": 5e-2, "schedule": "cosine", "warmup_epochs": 20.0, "min_lr": 1e-5,
            "clip_norm": 1.0, "label_smoothing": 0.1, "mixup": 0.8, "cutmix": 1.0,
            "model_args": {"drop_path_rate": 0.1},
            "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"),
        },
    ),
    "maxvit": Recipe(
        "MaxViT on ImageNet, from an image folder; stochastic depth is 0.2 for T, 0.3 for S, 0.4 for B, 0.6 for L.",
        "arXiv:2204.01697, appendix A.2",
        {
            "model": "maxvit_tiny_tf_224", "data": "imagenet", "epochs": 300, "batch_size": 4096, "optimizer": "adamw",
            "lr": 3e-3, "weight_decay": 0.05, "weight_decay_norm": False, "schedule": "cosine", "min_lr": 1e-5,
            "warmup_steps": 10_000, "clip_norm": 1.0, "ema_decay": 0.9999, "loss": "cross_entropy",
            "label_smoothing": 0.1, "mixup": 0.8, "augment": ("zoom=0.08:1", "flip", "rand_augment=2:15"),
            "model_args": {"drop_path_rate": 0.2},
        },
        reported={"imagenet": 83.62},
    ),
    "volo": Recipe(
        "VOLO-D1 from scratch: AdamW, 310 epochs, 20 of warm-up; without token labelling.",
        "arXiv:2106.13112, section 4.1, and the authors' code; not confirmed: erasing and the strength of RandAugment",
        # The published network learns the labels of an annotator for every token as well, with cut and paste of tokens
        # in place of mixup and cutmix; those labels are files of the authors.
        {
            "model": "volo_d1_224", "data": "imagenet", "epochs": 310, "batch_size": 1024, "optimizer": "adamw",
            "lr": 1.6e-3, "weight_decay": 5e-2, "schedule": "cosine", "warmup_epochs": 20.0, "min_lr": 1e-5,
            "label_smoothing": 0.1, "cutmix": 1.0, "model_args": {"drop_path_rate": 0.1},
            "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"),
        },
    ),
    "shvit": Recipe(
        "SHViT as published, without a teacher: AdamW, 300 epochs; weight decay is that of S4.",
        "arXiv:2401.16456, section 4, and the authors' code",
        # Their rate is 1e-3 for 512 images; adaptive clipping of gradients and repeated augmentation are left out.
        # Weight decay is 0.025, 0.032 and 0.035 for S1 to S3.
        {
            "model": "shvit_s4", "data": "imagenet", "epochs": 300, "batch_size": 2048, "optimizer": "adamw",
            "lr": 4e-3, "weight_decay": 0.03, "weight_decay_norm": False, "schedule": "cosine", "warmup_epochs": 5.0,
            "warmup_start": 1e-3, "min_lr": 1e-5, "label_smoothing": 0.1, "mixup": 0.8, "cutmix": 1.0,
            "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"), "ema_decay": 0.99996,
        },
        reported={"imagenet": 79.4},
    ),
    "shvit_cifar": Recipe(
        "SHViT on images of 32 x 32 in an hour or two on a CPU: AdamW, 20 epochs, crops, flips, RandAugment.",
        "ours",
        {
            "model": "shvit_cifar", "data": "cifar10", "epochs": 20, "batch_size": 128, "optimizer": "adamw",
            "lr": 2e-3, "weight_decay": 0.03, "weight_decay_norm": False, "schedule": "cosine", "warmup_epochs": 2.0,
            "min_lr": 1e-6, "label_smoothing": 0.1, "augment": ("crop=4", "flip", "rand_augment=1:7"),
            "validation_fraction": 0.04,
        },
    ),
    "spectformer": Recipe(
        "SpectFormer, vanilla, as published: AdamW, cosine, 300 epochs, mixup, cutmix and RandAugment.",
        "arXiv:2304.06446, section 4, and the authors' code",
        # Their rate is 5e-4 for 512 images.
        {
            "model": "spectformer_small", "data": "imagenet", "epochs": 300, "batch_size": 1024, "optimizer": "adamw",
            "lr": 1e-3, "weight_decay": 0.05, "weight_decay_norm": False, "schedule": "cosine", "warmup_epochs": 5.0,
            "warmup_start": 1e-3, "min_lr": 1e-5, "label_smoothing": 0.1, "mixup": 0.8, "cutmix": 1.0,
            "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9"), "clip_norm": 1.0,
        },
        reported={"imagenet": 81.6},
    ),
    "spectformer_h": Recipe(
        "SpectFormer, hierarchical, from scratch: AdamW, 310 epochs; without token labelling.",
        "arXiv:2304.06446, section 4, and the authors' code; not confirmed: the augmentation, which is that of VOLO",
        # The published networks learn the labels of an annotator for every token as well; those labels are files of
        # the authors. Gradients are clipped in the large network.
        {
            "model": "spectformer_h_small", "data": "imagenet", "epochs": 310, "batch_size": 1024,
            "optimizer": "adamw", "lr": 1.6e-3, "weight_decay": 5e-2, "schedule": "cosine", "warmup_epochs": 20.0,
            "min_lr": 1e-5, "label_smoothing": 0.1, "cutmix": 1.0,
            "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"),
        },
    ),
    "ninformer": Recipe(
        "NiNformer as published: Adam with a constant rate, 100 epochs.",
        "arXiv:2403.02411 and the authors' code",
        {
            "model": "ninformer_cifar", "data": "cifar10", "epochs": 100, "batch_size": 128, "optimizer": "adam",
            "lr": 1e-3, "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0,
            "augment": ("crop=4", "flip"),
        },
        {"mnist": {"model": "ninformer_mnist", "augment": ("none",)}},
    ),
    "self_routing": Recipe(
        "Self-routing capsules as published on CIFAR-10; where the authors divide the rate twice by 10, a cosine.",
        "Hahn, Pyeon, Kim, NeurIPS 2019, and the authors' code",
        {
            "model": "sr_resnet20", "data": "cifar10", "epochs": 350, "batch_size": 64, "optimizer": "sgd", "lr": 0.1,
            "weight_decay": 1e-4, "schedule": "cosine", "warmup_epochs": 0.0, "augment": ("crop=4", "flip"),
        },
        {
            "svhn": {"epochs": 200, "augment": ("crop=4",)},
            "smallnorb": {
                "model": "sr_convnet", "epochs": 200, "augment": ("brightness=0.125", "contrast=0.7:1.3"),
            },
        },
        {"cifar10": 91.83, "svhn": 96.66},
    ),
    "inverted_dot_product": Recipe(
        "Capsules with inverted dot-product routing as published; for two divisions of the rate by 10, a cosine.",
        "arXiv:2002.04764 and the authors' code",
        {
            "model": "idpa_cifar10_resnet", "data": "cifar10", "epochs": 350, "batch_size": 128, "optimizer": "sgd",
            "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine", "warmup_epochs": 0.0, "augment": ("crop=4", "flip"),
        },
        reported={"cifar10": 95.14},
    ),
    "variational_bayes": Recipe(
        "Capsules with variational Bayes routing as the authors' code trains them on smallNORB.",
        "arXiv:1905.11455 and the authors' code",
        {
            "model": "vb_base", "data": "smallnorb", "epochs": 300, "batch_size": 128, "optimizer": "adam", "lr": 1e-3,
            "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0,
            "augment": ("none",),
        },
        reported={"smallnorb": 98.7},
    ),
    "deepcaps": Recipe(
        "DeepCaps, the first of its two runs: Adam, the rate halved every 10 epochs, margin loss and reconstruction.",
        "arXiv:1904.09546 and the authors' code",
        # Their reconstruction loss is a mean over the pixels and has the weight 0.4; ours is a sum.
        {
            "model": "deepcaps_64", "data": "cifar10", "epochs": 100, "batch_size": 256, "optimizer": "adam",
            "lr": 1e-3, "weight_decay": 0.0, "schedule": "exponential", "decay_rate": 0.5**0.1, "warmup_epochs": 0.0,
            "reconstruction_weight": 0.4 / 12288, "augment": ("shift=6", "flip"),
        },
        {
            "mnist": {"model": "deepcaps_28", "reconstruction_weight": 0.4 / 784, "augment": ("shift=3",)},
            "fashion_mnist": {
                "model": "deepcaps_28", "reconstruction_weight": 0.4 / 784, "augment": ("shift=3", "flip"),
            },
        },
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
        },
        {"fashion_mnist": 92.7, "cifar10": 75.2},
    ),
    "orthcaps": Recipe(
        "OrthCaps: AdamW, warm-up, 300 epochs; a cosine for a rate that halves on plateaus.",
        "arXiv:2403.13351 and the authors' later code, not confirmed",
        {
            "model": "orthcaps_s_cifar", "data": "cifar10", "epochs": 300, "batch_size": 128, "optimizer": "adamw",
            "lr": 2.5e-3, "weight_decay": 5e-4, "schedule": "cosine", "warmup_epochs": 5.0, "min_lr": 1e-6,
            "loss": "margin", "augment": ("crop=4", "flip"),
        },
        {
            "cifar10": CIFAR10,
            "svhn": {"augment": ("crop=4",)},
            "mnist": {"model": "orthcaps_s", "img_size": 32, "augment": ("shift=2",)},
            "fashion_mnist": {"model": "orthcaps_s", "img_size": 32, "augment": ("crop=2", "flip")},
        },
        {"mnist": 99.68, "svhn": 96.26, "cifar10": 86.84},
    ),
    "language_demo": Recipe(
        "A model of bytes on two and a half million bytes of Python's own sources, in minutes on two CPU cores.",
        "ours",
        {
            "model": "tnl_tiny", "data": "pystdlib", "task": "language", "epochs": 1, "limit": 9_600,
            "batch_size": 16, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.0, "schedule": "cosine",
            "warmup_steps": 50, "min_lr": 3e-4, "clip_norm": 1.0, "augment": ("none",), "tensorboard": False,
        },
    ),
    "halonet": Recipe(
        "HaloNet by AdamW in 300 epochs, with RandAugment, mixup and random erasing.",
        "github.com/mindspore-lab/mindcv, configs/halonet; the paper's authors have published no code",
        {
            "model": "halonet50ts", "data": "imagenet", "epochs": 300, "batch_size": 512, "optimizer": "adamw",
            "lr": 1.25e-3, "weight_decay": 0.04, "weight_decay_norm": False, "schedule": "cosine", "min_lr": 6e-6,
            "warmup_epochs": 3.0, "warmup_start": 1e-3, "loss": "cross_entropy", "label_smoothing": 0.1, "mixup": 0.8,
            "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"),
        },
        reported={"imagenet": 79.53},
    ),
    "biformer": Recipe(
        "BiFormer as published: AdamW, 300 epochs, RandAugment, mixup, cutmix and random erasing.",
        "arXiv:2303.08810, section 4.1, and DeiT's augmentation, arXiv:2012.12877, table 9",
        # Stochastic depth is an argument of the presets: 0.1, 0.15 and 0.4 for T, S and B.
        {
            "model": "biformer_tiny", "data": "imagenet", "epochs": 300, "batch_size": 1024, "optimizer": "adamw",
            "lr": 1e-3, "weight_decay": 0.05, "weight_decay_norm": False, "schedule": "cosine", "min_lr": 1e-5,
            "warmup_epochs": 5.0, "warmup_start": 1e-3, "loss": "cross_entropy", "label_smoothing": 0.1, "mixup": 0.8,
            "cutmix": 1.0, "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"),
        },
        reported={"imagenet": 81.4},
    ),
    "digits_demo": Recipe(
        "The demonstration: MSPCaps-T on 1,797 handwritten digits, in two minutes on two CPU cores.",
        "ours",
        {
            "model": "mspcaps_tiny", "data": "digits", "epochs": 30, "batch_size": 64, "optimizer": "adamw",
            "lr": 2e-3, "weight_decay": 1e-4, "schedule": "cosine", "warmup_epochs": 1.0, "min_lr": 1e-6,
            "augment": ("rotate=10", "crop=3"), "validation_fraction": 0.0, "tensorboard": False,
        },
    ),
}  # fmt: skip


def list_recipes(pattern: str = "*") -> list[str]:
    """Names of the recipes that match a shell-style pattern, sorted."""
    return sorted(fnmatch.filter(RECIPES, pattern))


def apply_recipe(name: str, model: str | None = None, data: str | None = None) -> TrainConfig:
    """The configuration of a recipe, for its own network and data set or for others."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    recipe = RECIPES[name]
    data = data or str(recipe.changes["data"])
    by_data = recipe.by_data.get(data, recipe.by_data.get(data.partition(":")[0], {}))
    changes = {**recipe.changes, **by_data, "data": data, "recipe": name}
    if model:
        changes["model"] = model
    return TrainConfig().replace(**changes)
