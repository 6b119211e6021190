"""Whether SEA can replace a trained network's attention, compared with linear attention without selected keys.

A dense transformer is trained first. Its attention is then replaced, in all layers, and the copy is distilled from it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mereo.mechanisms.attention.hosted import HostedAttention, attention_layers, replace_attention
from mereo.mechanisms.attention.sparse.sea_estimate import KernelAttention
from mereo.surgery import sea, set_top_k
from mereo.training.attention_matches import sea_matches
from mereo.training.matching import Match
from papers.common.replaced_attention import BATCH, EPOCHS, TOKENS, train_teacher
from papers.common.settings import Settings

COLUMNS, KEPT, MORE = 32, 8, (16, 32, TOKENS)
"""Columns of the estimate, keys that a query keeps in training, and numbers of keys that are tried afterwards."""
RATE, LOGITS, TASK = 2e-3, 0.1, 0.1


class KernelHosted(HostedAttention):
    """Linear attention by random features between the projections of another layer: SEA without its estimate.

    Shapes: (batch, tokens, dim) -> (batch, tokens, dim).
    """

    def __init__(self, host: nn.Module) -> None:
        super().__init__(host)
        self.kernel = KernelAttention(self.head_dim).to(next(host.parameters()).device)

    def exchange(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.kernel(q, k, v).transpose(1, 2).flatten(2)


def run(settings: Settings) -> dict[str, Any]:
    """A table of accuracies and of the distance from the dense network."""
    teacher = train_teacher(settings)
    layers = attention_layers(teacher.model)
    how: dict[str, Any] = {
        "epochs": settings.epochs or EPOCHS,
        "lr": RATE,
        "task": "cross_entropy",
        "task_weight": TASK,
    }
    rows: list[dict[str, Any]] = [{"attention": "dense", "keys": TOKENS, **teacher.row(teacher.model)}]

    student = sea(teacher.model, columns=COLUMNS, top_k=KEPT)
    rows.append({"attention": "SEA before distillation", "keys": KEPT, **teacher.row(student)})
    taught = teacher.teach(student, sea_matches(student, logits_weight=LOGITS), "SEA", **how)
    rows.append({"attention": "SEA", "keys": KEPT, **teacher.row(student)})
    for keys in MORE:
        set_top_k(student, keys)
        rows.append({"attention": "SEA, more keys without training", "keys": keys, **teacher.row(student)})

    torch.manual_seed(0)
    kernel = replace_attention(teacher.model, KernelHosted)
    matches = [*(Match("input", f"{layer}.proj") for layer in layers), Match(loss="kl", weight=LOGITS)]
    teacher.teach(kernel, matches, "linear attention", **how)
    rows.append({"attention": "linear attention only", "keys": 0, **teacher.row(kernel)})
    steps = -(-len(teacher.splits.train) // (settings.batch_size or BATCH)) * (settings.epochs or EPOCHS)
    return {
        "tables": {f"{steps} steps of distillation on {len(teacher.splits.train):,} images of {teacher.data}": rows},
        "notes": [
            f"Keys: of {TOKENS}, on average over queries and heads. KL: of the dense network's predictions from these.",
            f"SEA has {COLUMNS} columns. Both copies are distilled with the same images, steps and rates, from what the"
            f" heads give, {LOGITS} KL of the logits and {TASK} cross-entropy; SEA from the dense couplings too.",
        ],
        "data": teacher.data,
        "distillation": taught.history,
    }
