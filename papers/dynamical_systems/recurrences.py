"""Multi-query associative recall by causal mixers: accuracy over the size of the state, and their kernels side by side.

Two blocks x + mixer(norm(x)) without channel mixers, learned positions except for state spaces, and a read-out tied to
the embedding, as in the paper, and as there linear layers of softmax attention start with a deviation of 0.02: with
larger weights it gives a value of the sequence at random for longer. Only places with a label are scored.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.core.recurrence import Recurrence
from mereo.data import Batch
from mereo.data.recall import LabelledTokens, make_sequences
from mereo.data.sets.mqar import PAIRS
from mereo.errors import check_choice
from mereo.explain import draw_kernels
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.scan import RGLRU, S6, SSD, Aaren, LightningAttention, NormalisedAttention, QuasiLSTM
from mereo.models.sequence_model import SequenceModel
from mereo.runtime.device import choose_device
from mereo.tasks import Recall
from papers.common.fitting import batches, fit
from papers.common.settings import Settings

DIM, DEPTH, VOCAB, STATES = 64, 2, 256, (4, 16, 64)
RATES = (1e-3, 3e-3)
"""Each mixer is trained with all, as in the paper; the best on held-out sequences counts."""
WEIGHT_DECAY, SECOND_MOMENT, WARMUP_EPOCHS = 0.1, 0.98, 0.16
"""Of AdamW; with a beta_2 of 0.999, softmax attention too gives a value of the sequence at random for longer."""
SEQUENCES, EPOCHS, BATCH, TESTED = 20000, 10, 32, 1000
SHOWN, DEGREE = 4, 8
"""State size of the mixers whose kernels are drawn, and degree of the features of softmax attention."""
PICTURE = "kernels.png"

Mixers = dict[str, Callable[[int], nn.Module]]


def softmax_attention(n: int) -> nn.Module:
    """Causal attention of one head with queries of n numbers, whose weights start small."""
    mixer = MultiHeadAttention(DIM, 1, qk_dim=n, causal=True)
    for layer in mixer.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
    return mixer


GROUPS: dict[str, Mixers] = {
    "attention": {
        "softmax attention": softmax_attention,
        "linear attention": lambda n: NormalisedAttention(DIM, qk_dim=n, normaliser="sum"),
    },
    "normalisers": {
        "normalised attention, exp": lambda n: NormalisedAttention(DIM, qk_dim=n),
        "normalised attention, softplus": lambda n: NormalisedAttention(DIM, qk_dim=n, normaliser="softplus"),
        "normalised attention, sigmoid": lambda n: NormalisedAttention(DIM, qk_dim=n, normaliser="sigmoid"),
    },
    "state_spaces": {"S6": lambda n: S6(DIM, n), "SSD": lambda n: SSD(DIM, state_dim=n)},
    "fixed": {
        "quasi-LSTM": lambda n: QuasiLSTM(DIM),
        "quasi-LSTM, exponential gate": lambda n: QuasiLSTM(DIM, gate="exponential"),
        "RG-LRU": lambda n: RGLRU(DIM),
        "Aaren": lambda n: Aaren(DIM, 4),
        "lightning attention": lambda n: LightningAttention(DIM, 4),
    },
}
"""Mixers with n states for each channel, and "fixed" ones whose states do not depend on n."""
MIXERS: Mixers = {name: make for group in GROUPS.values() for name, make in group.items()}
STATE_SPACES = ("S6", "SSD", "RG-LRU")
"""Mixers without positions."""


class MixerBlock(nn.Module):
    """x + mixer(norm(x)): (batch, tokens, dim) -> the same."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(DIM), mixer

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x + self.mixer(self.norm(x))


class RecallModel(SequenceModel):
    """Blocks of one mixer between an embedding and its transpose; int64 (batch, length) -> (batch, length, VOCAB)."""

    def __init__(self, mixer: Callable[[], nn.Module], length: int, *, positions: bool) -> None:
        blocks = [MixerBlock(mixer()) for _ in range(DEPTH)]
        super().__init__(VOCAB, DIM, length, blocks, nn.LayerNorm(DIM), tied=True)
        self.positions = nn.Parameter(0.02 * torch.randn(length, DIM)) if positions else None

    def embed(self, tokens: Tensor, position: int = 0) -> Tensor:
        embedded = super().embed(tokens, position)
        return embedded if self.positions is None else embedded + self.positions[position : position + tokens.shape[1]]


def trained(
    name: str, n: int, length: int, data: LabelledTokens, settings: Settings, seed: int, rate: float
) -> RecallModel:
    """A network with a mixer of n states, after its training."""
    torch.manual_seed(seed)
    device, mixer = choose_device(settings.device or "cpu"), MIXERS[name]
    model = RecallModel(lambda: mixer(n), length, positions=name not in STATE_SPACES).to(device)

    def loss(batch: Batch) -> Tensor:
        assert batch.tokens is not None
        asked = batch.labels >= 0
        return F.cross_entropy(model.forward_head(model.forward_features(batch.tokens)[asked]), batch.labels[asked])

    fit(
        loss, model.parameters(), data, epochs=settings.epochs or EPOCHS, batch_size=settings.batch_size or BATCH,
        lr=rate, device=device, title=f"{name}, n = {n}, length {length}, rate {rate:g}", say=settings.say, seed=seed,
        weight_decay=WEIGHT_DECAY, second_moment=SECOND_MOMENT, warmup_epochs=WARMUP_EPOCHS,
    )  # fmt: skip
    return model.eval()


def run(settings: Settings) -> dict[str, Any]:
    """A table for each length, and the kernels of the first layers on one sequence of the first length."""
    lengths = {str(length): length for length in PAIRS}
    for each in settings.variants:
        check_choice("variants", each, [*GROUPS, *lengths])
    chosen = [lengths[each] for each in settings.variants if each in lengths] or [min(PAIRS)]
    groups = [each for each in settings.variants if each in GROUPS] or list(GROUPS)
    kernels, count = dict[str, Recurrence](), settings.limit or SEQUENCES
    tables: dict[str, list[dict[str, Any]]] = {}
    for length in chosen:
        train, held, test = (
            make_sequences(length, PAIRS[length], VOCAB, seed, number)
            for seed, number in ((0, count), (1, settings.images or TESTED), (2, settings.images or TESTED))
        )
        rows = tables[f"Accuracy in %, {PAIRS[length]} queries in {length} tokens, {count:,} sequences"] = []
        for group in groups:
            for name in GROUPS[group]:
                row: dict[str, Any] = {"mixer": name, **{f"n = {n}": None for n in STATES}}
                for n in STATES if group != "fixed" else STATES[:1]:
                    make = partial(trained, name, n, length, train, settings)
                    tried = {rate: make(0, rate) for rate in RATES}
                    best = max(tried, key=lambda rate: accuracy(tried[rate], held))
                    models = [tried[best], *(make(seed, best) for seed in range(1, settings.seeds))]
                    row[f"n = {n}"] = 100 * statistics.mean(accuracy(model, test) for model in models)
                    settings.say(f"{name}, n = {n}, length {length}: {row[f'n = {n}']:.1f} %")
                    if length == chosen[0] and (group == "fixed" or n == SHOWN):
                        kernels[name] = _first_layer(models[0], test.tokens[:1])
                rows.append(row)
    draw_kernels(kernels, settings.folder / PICTURE)
    errors = [{"mixer": name, "error": made.error} for name, made in kernels.items()]
    return {
        "tables": {**tables, "Largest difference between a mixer and its recurrence": errors},
        "notes": [
            "A value taken from the sequence at random is right once in as many draws as there are pairs.",
            f"The states of the last mixers do not depend on n; softmax attention by features of degree {DEGREE}.",
        ],
        "pictures": [PICTURE],
    }


@torch.inference_mode()
def accuracy(model: RecallModel, data: LabelledTokens) -> float:
    """The share of the queries whose value has the highest score."""
    metrics = Recall().metrics()
    for batch in batches(data, 64, model.embedding.weight.device):
        assert batch.tokens is not None
        metrics.update(model(batch.tokens), batch)
    return metrics.compute()["accuracy"]


@torch.inference_mode()
def _first_layer(model: RecallModel, tokens: Tensor) -> Recurrence:
    """The recurrence of the first mixer on a sequence."""
    found = mereo.recurrence(model, tokens.to(model.embedding.weight.device), degree=DEGREE)
    assert isinstance(found, dict)
    return found["blocks.0.mixer"]
