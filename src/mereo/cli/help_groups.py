"""Help of a command with many options: a box for each group of options, the options of daily use first."""

import re
from collections.abc import Mapping, Sequence

TRAIN_GROUPS: dict[str, tuple[str, ...]] = {
    "most used": (
        "data", "model", "pretrained", "weights", "minutes", "epochs", "img_size", "task", "resume", "name",
    ),
    "network": ("model_args", "insert", "tap", "in_chans"),
    "data": (
        "data_root", "classes", "label_column", "split_by", "task_options", "augment", "sampler", "mean", "std",
        "validation_fraction", "paper_protocol", "limit", "test_limit", "strict", "stream",
    ),
    "optimiser and schedule": (
        "recipe", "batch_size", "accumulate", "optimizer", "lr", "schedule", "patience", "weight_decay",
        "adam_beta2", "weight_decay_norm", "layer_decay", "freeze", "freeze_layers", "freeze_until", "warmup_epochs",
        "warmup_steps", "warmup_start", "min_lr", "decay_rate", "decay_steps", "plateau_factor", "plateau_patience",
        "plateau_cooldown", "clip_norm", "ema_decay",
    ),
    "loss": (
        "loss", "label_smoothing", "mixup", "cutmix", "adversarial", "adversarial_steps", "adversarial_share",
        "attention_adversary", "attention_adversary_args", "diversify_attention",
        "reconstruction_weight", "loss_weights",
    ),
    "machine": ("device", "precision", "compile", "seed", "channels_last", "sync_batchnorm"),
    "run": ("output", "dry_run", "checkpoint_seconds", "tensorboard", "track"),
}  # fmt: skip
"""The options of `mereo train` by group; every field of its configuration is in one."""
_BOX = re.compile(r"^[^\w\s]{2} options ")
_OPTION = re.compile(r"^. (?:-h, )?--([\w-]+)")


def grouped(text: str, groups: Mapping[str, Sequence[str]]) -> str:
    """A help text whose box of options is cut into one for each group; options in no group stay in the last box.

    Args:
        text: as tyro prints it.
        groups: names of options by title.
    """
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if _BOX.match(line)), None)
    if first is None:
        return text
    last = next(n for n in range(first + 1, len(lines)) if lines[n][:1] != lines[first + 1][:1])
    entries: dict[str, list[str]] = {}
    for line in lines[first + 1 : last]:
        if (start := _OPTION.match(line)) is not None:
            current = entries.setdefault(start[1].removeprefix("no-").replace("-", "_"), [])
        current.append(line)
    titles = {name: title for title, names in groups.items() for name in names}
    corner, rule = lines[first][0], lines[first][1]
    boxes = []
    for title in [*groups, "others"]:
        names = groups.get(title) or [name for name in entries if name not in titles]
        content = [line for name in names for line in entries.get(name, ())]
        if content:
            head = f"{corner}{rule} {title} "
            boxes += [head + rule * (len(lines[first]) - len(head) - 1) + lines[first][-1], *content, lines[last]]
    return "\n".join([*lines[:first], *boxes, *lines[last + 1 :]]) + "\n"
