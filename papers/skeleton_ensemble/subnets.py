"""Each subnet and their ensemble on generated actions; where the subnets are wrong together.

The subnets of an ensemble are trained side by side on the same batches, each by its own loss.
"""

from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

import mereo
from mereo.data import Augmentation, Batch, load_splits
from mereo.models.sequence.skeleton_ensemble import SUBNETS, fuse
from mereo.pictures import row_of_panels, save_figure
from mereo.tasks.sequence import SequenceObjective
from papers.common.fitting import follow
from papers.common.settings import Settings

EPOCHS, TRAINED, TESTED, BATCH, RATE, FRAMES = 12, 1000, 1000, 50, 4e-3, 60
WIDTHS = (16, 32, 64)
DATA = "actions"
AUGMENT = ("speed=0.8:1.25", "turn=30", "mirror")
PICTURE = "subnets.png"
FUSED = ("ensemble, product", "ensemble, mean")


def run(settings: Settings) -> dict[str, Any]:
    """Tables of accuracies and of errors that two subnets share, and a picture of both."""
    rows, right = list[dict[str, Any]](), list[Tensor]()
    for seed in range(settings.seeds):
        settings.say(f"seed {seed}")
        log_shares, labels = _trained(settings, seed)
        answers = {name: log_shares[:, place] for place, name in enumerate(SUBNETS)}
        answers |= {name: fuse(log_shares, name.rpartition(" ")[2]) for name in FUSED}
        correct = {name: (each.argmax(1) == labels).double() for name, each in answers.items()}
        rows.append({"seed": seed, **{name: each.mean().item() for name, each in correct.items()}})
        right.append(torch.stack([correct[name] for name in SUBNETS]))
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    rows.append({**mean, "seed": "mean"})
    wrong = 1 - torch.stack(right)
    pairs = []
    for one, other in combinations(range(len(SUBNETS)), 2):
        both, by_chance = (
            (wrong[:, one] * wrong[:, other]).mean(),
            (wrong.mean(2)[:, one] * wrong.mean(2)[:, other]).mean(),
        )
        pairs.append(
            {"subnets": f"{SUBNETS[one]}, {SUBNETS[other]}", "both wrong": both.item(), "by chance": by_chance.item()}
        )
    _draw(rows, wrong, settings.folder / PICTURE)
    return {"tables": {"Share of correct actions": rows, "Wrong together": pairs}, "notes": [], "pictures": [PICTURE]}


def _trained(settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Log probabilities of each subnet for the test sequences, (n, subnets, classes), and their classes."""
    data = settings.data or DATA
    options = f"seed={seed},train={settings.limit or TRAINED}"
    splits = load_splits(f"{data}{',' if ':' in data else ':'}{options}", length=FRAMES)
    torch.manual_seed(seed)
    model: Any = mereo.create_model("skeleton_ensemble_small", widths=WIDTHS)
    objective, generator = SequenceObjective(model), torch.Generator().manual_seed(seed)
    epochs, count = settings.epochs or EPOCHS, len(splits.train)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    schedule = OneCycleLR(optimiser, RATE, total_steps=epochs * -(-count // BATCH))
    augmentation = Augmentation.parse(AUGMENT)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for part in torch.randperm(count, generator=generator).split(BATCH):
            loss, _ = objective(splits.train.batch(part, augmentation=augmentation, generator=generator))
            follow(schedule, loss)
            total += loss.item() * len(part) / count
        settings.say(f"epoch {epoch + 1}: loss {total:.3f}")
    model.eval()
    tested = torch.arange(min(settings.images or TESTED, len(splits.test)))
    scores, labels = [], []
    with torch.no_grad():
        for part in tested.split(250):
            batch: Batch = splits.test.batch(part)
            scores.append(model.member_scores(model.forward_features(batch.sequences, batch.lengths)))
            labels.append(batch.labels)
    return torch.cat(scores), torch.cat(labels)


def _draw(rows: list[dict[str, Any]], wrong: Tensor, path: Path) -> None:
    """The accuracies of all seeds, and the share of the errors of one subnet that another shares."""
    figure, (left, right) = row_of_panels(("share of correct actions", "share of errors that both make"), 4.6, 3.2)
    names = (*SUBNETS, *FUSED)
    for row in rows[:-1]:
        left.scatter([row[name] for name in names], range(len(names)), color="#1c4f8c", alpha=0.6, s=22)
    left.scatter([rows[-1][name] for name in names], range(len(names)), marker="|", color="#c92a2a", s=220)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    left.grid(axis="x", alpha=0.3)
    left.tick_params(axis="x", labelsize=8)
    together = torch.einsum("smn,skn->mk", wrong, wrong) / wrong.sum((0, 2)).clamp(min=1).unsqueeze(1)
    right.imshow(together.numpy(), vmin=0, vmax=1, cmap="Blues")
    for (line, column), value in [((i, j), together[i, j].item()) for i in range(4) for j in range(4)]:
        right.text(column, line, f"{value:.2f}", ha="center", va="center", fontsize=8,
                   color="white" if value > 0.6 else "black")  # fmt: skip
    right.set_xticks(range(len(SUBNETS)), [name.replace("_", "\n") for name in SUBNETS], fontsize=8)
    right.set_yticks(range(len(SUBNETS)), SUBNETS, fontsize=8)
    right.set_ylabel("of the errors of", fontsize=8)
    right.set_xlabel("this subnet makes", fontsize=8)
    save_figure(figure, path)
