"""How few keys a query needs once a predictor chooses them, and what the predictor adds to fine-tuning.

A dense transformer is trained first. Predictors learn its couplings; then the network is fine-tuned with the keys that
they keep, at several rates, and once with untrained predictors.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from mereo.core import record
from mereo.mechanisms.attention.hosted import attention_layers
from mereo.mechanisms.attention.sparse import SparsifinerAttention, attention_cost, set_phase
from mereo.surgery import sparsifiner, watchable
from mereo.training.attention_matches import sparsifiner_matches
from papers.common.replaced_attention import BATCH, DIM, EPOCHS, HEADS, TOKENS, Teacher, train_teacher
from papers.common.settings import Settings

RATES = (0.5, 0.25, 0.1, 0.05)
FIRST_RATE, SECOND_RATE, WEIGHT = 1e-2, 5e-4, 0.01
"""Learning rates of the two phases, and the weight of the first one's loss."""


@torch.no_grad()
def attention_kept(teacher: Teacher, student: nn.Module) -> float:
    """The share of the dense network's attention that lies on keys which the student keeps, in percent."""
    images = teacher.images[:250]
    dense = watchable(teacher.model).eval()
    with record(dense) as expected, record(student.eval()) as ours:
        dense(images), student(images)
    first = next(module.prefix for module in student.modules() if isinstance(module, SparsifinerAttention))
    shares = [
        (expected[name] * (ours[name] > 0)).sum(-1)[:, :, first:].mean().item()
        for name in (f"{layer}.coupling" for layer in attention_layers(teacher.model))
    ]
    return 100 * sum(shares) / len(shares)


def run(settings: Settings) -> dict[str, Any]:
    """A table of accuracies, costs and of the attention that is kept, by the share of keys."""
    teacher = train_teacher(settings)
    epochs = settings.epochs or EPOCHS
    fresh = sparsifiner(teacher.model, RATES[0], tokens=TOKENS)
    learned = deepcopy(fresh)
    set_phase(learned, "reconstruction")
    matches = sparsifiner_matches(learned, weight=WEIGHT)
    dense, teacher.model = teacher.model, watchable(teacher.model)
    first = teacher.teach(learned, matches, "predictors", epochs, lr=FIRST_RATE, trained=["*.predictor.*"])
    teacher.model = dense
    set_phase(learned, "sparse")

    def cost(keep: float) -> float:
        return 100 * attention_cost(TOKENS, DIM // HEADS, keep) / (2 * TOKENS**2 * DIM // HEADS)

    rows: list[dict[str, Any]] = [
        {"predictor": "none (dense)", "keep": 1.0, "cost %": 100.0, "attention %": 100.0, **teacher.row(dense)}
    ]
    pairs = [("learned", learned, keep) for keep in RATES] + [("fresh", fresh, keep) for keep in RATES[1:2]]
    for name, start, keep in pairs:
        student = deepcopy(start)
        for module in student.modules():
            if isinstance(module, SparsifinerAttention):
                module.keep = keep
        kept = attention_kept(teacher, student)
        matches = sparsifiner_matches(student, tokens="norm")
        teacher.teach(student, matches, f"{name}, keep {keep}", -(-epochs // 3), lr=SECOND_RATE, task="cross_entropy")
        rows.append(
            {"predictor": name, "keep": keep, "cost %": cost(keep), "attention %": kept, **teacher.row(student)}
        )
    steps = -(-len(teacher.splits.train) // (settings.batch_size or BATCH))
    return {
        "tables": {
            f"{steps * epochs} steps of reconstruction and {steps * -(-epochs // 3)} of fine-tuning on"
            f" {len(teacher.splits.train):,} images of {teacher.data}": rows
        },
        "notes": [
            f"Keep: share of {TOKENS} keys. Cost: multiply-adds of the paper's formula as a share of dense attention,"
            " projections left out.",
            "Attention: share of the dense network's attention on the keys that are kept, before fine-tuning.",
        ],
        "data": teacher.data,
        "reconstruction": first.history,
    }
