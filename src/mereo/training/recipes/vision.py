"""Recipes of backbones."""

from typing import Any

from mereo.training.recipes.recipe import Recipe

IMAGENET: dict[str, Any] = {
    "data": "imagenet", "optimizer": "adamw", "schedule": "cosine", "min_lr": 1e-5, "label_smoothing": 0.1,
    "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9", "erase=0.25:0.02:0.33"),
}  # fmt: skip
"""What most recipes for ImageNet share."""
DEIT = IMAGENET | {
    "epochs": 300, "batch_size": 1024, "lr": 1e-3, "weight_decay": 0.05, "weight_decay_norm": False,
    "warmup_epochs": 5.0, "warmup_start": 1e-3, "mixup": 0.8, "cutmix": 1.0,
}  # fmt: skip
"""DeiT, arXiv:2012.12877, table 9: a rate of 5e-4 for every 512 images."""
_VOLO = IMAGENET | {
    "epochs": 310, "batch_size": 1024, "lr": 1.6e-3, "weight_decay": 5e-2, "warmup_epochs": 20.0, "cutmix": 1.0,
}  # fmt: skip

RECIPES: dict[str, Recipe] = {
    "cait": Recipe(
        "CaiT without distillation: 400 epochs of AdamW with RandAugment, mixup, cutmix and an average of the weights.",
        "arXiv:2103.17239, section 5.1, and DeiT, arXiv:2012.12877, table 9, not every number confirmed; average: ours",
        # A rate of 5e-4 for every 512 images. Stochastic depth is an argument of the presets.
        DEIT | {"model": "cait_xxs24_224", "epochs": 400, "loss": "cross_entropy", "ema_decay": 0.99996},
    ),
    "davit": Recipe(
        "DaViT-Tiny from scratch: AdamW, 300 epochs, 20 of warm-up, mixup and cutmix.",
        "arXiv:2204.03645, section 4.1; not confirmed: augmentation, which follows DeiT, arXiv:2012.12877",
        # The small and the base network have drop_path_rate 0.2 and 0.4.
        IMAGENET | {
            "model": "davit_tiny", "epochs": 300, "batch_size": 1024, "lr": 1e-3, "weight_decay": 5e-2,
            "warmup_epochs": 20.0, "clip_norm": 1.0, "mixup": 0.8, "cutmix": 1.0, "model_args": {"drop_path_rate": 0.1},
        },
    ),
    "maxvit": Recipe(
        "MaxViT on ImageNet, from an image folder; stochastic depth is 0.2 for T, 0.3 for S, 0.4 for B, 0.6 for L.",
        "arXiv:2204.01697, appendix A.2",
        IMAGENET | {
            "model": "maxvit_tiny_tf_224", "epochs": 300, "batch_size": 4096, "lr": 3e-3, "weight_decay": 0.05,
            "weight_decay_norm": False, "warmup_steps": 10_000, "clip_norm": 1.0, "ema_decay": 0.9999,
            "loss": "cross_entropy", "mixup": 0.8, "augment": ("zoom=0.08:1", "flip", "rand_augment=2:15"),
            "model_args": {"drop_path_rate": 0.2},
        },
        reported={"imagenet": 83.62},
    ),
    "volo": Recipe(
        "VOLO-D1 from scratch: AdamW, 310 epochs, 20 of warm-up; without token labelling.",
        "arXiv:2106.13112, section 4.1, and the authors' code; not confirmed: erasing and the strength of RandAugment",
        # The published network learns the labels of an annotator for every token as well, with cut and paste of tokens
        # in place of mixup and cutmix; those labels are files of the authors.
        _VOLO | {"model": "volo_d1_224", "model_args": {"drop_path_rate": 0.1}},
    ),
    "shvit": Recipe(
        "SHViT as published, without a teacher: AdamW, 300 epochs; weight decay as for S4.",
        "arXiv:2401.16456, section 4, and the authors' code",
        # Their rate is 1e-3 for 512 images; adaptive clipping of gradients and repeated augmentation are left out.
        # Weight decay is 0.025, 0.032 and 0.035 for S1 to S3.
        DEIT | {"model": "shvit_s4", "batch_size": 2048, "lr": 4e-3, "weight_decay": 0.03, "ema_decay": 0.99996},
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
        DEIT | {
            "model": "spectformer_small", "augment": ("zoom=0.08:1", "flip", "rand_augment=2:9"), "clip_norm": 1.0,
        },
        reported={"imagenet": 81.6},
    ),
    "spectformer_h": Recipe(
        "SpectFormer, hierarchical, from scratch: AdamW, 310 epochs; without token labelling.",
        "arXiv:2304.06446, section 4, and the authors' code; not confirmed: the augmentation, which follows VOLO",
        # The published networks learn the labels of an annotator for every token as well; those labels are files of
        # the authors. Gradients are clipped in the large network.
        _VOLO | {"model": "spectformer_h_small"},
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
    "halonet": Recipe(
        "HaloNet by AdamW in 300 epochs, with RandAugment, mixup and random erasing.",
        "github.com/mindspore-lab/mindcv, configs/halonet; the paper's authors have published no code",
        IMAGENET | {
            "model": "halonet50ts", "epochs": 300, "batch_size": 512, "lr": 1.25e-3, "weight_decay": 0.04,
            "weight_decay_norm": False, "min_lr": 6e-6, "warmup_epochs": 3.0, "warmup_start": 1e-3,
            "loss": "cross_entropy", "mixup": 0.8,
        },
        reported={"imagenet": 79.53},
    ),
    "biformer": Recipe(
        "BiFormer as published: AdamW, 300 epochs, RandAugment, mixup, cutmix and random erasing.",
        "arXiv:2303.08810, section 4.1, and DeiT's augmentation, arXiv:2012.12877, table 9",
        # Stochastic depth is an argument of the presets: 0.1, 0.15 and 0.4 for T, S and B.
        DEIT | {"model": "biformer_tiny", "loss": "cross_entropy"},
        reported={"imagenet": 81.4},
    ),
}  # fmt: skip
