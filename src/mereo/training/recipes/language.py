"""Recipes of sequence models."""

from mereo.training.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    "language_demo": Recipe(
        "A model of bytes on two and a half million bytes of Python's own sources, in minutes on two CPU cores.",
        "ours",
        {
            "model": "tnl_tiny", "data": "pystdlib", "task": "language", "epochs": 1, "limit": 9_600,
            "batch_size": 16, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.0, "schedule": "cosine",
            "warmup_steps": 50, "min_lr": 3e-4, "clip_norm": 1.0, "augment": ("none",), "tensorboard": False,
        },
    ),
}  # fmt: skip
