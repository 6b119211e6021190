"""Multi-query associative recall by causal mixers: accuracy over the size of the state, and their kernels side by side.

Two blocks x + mixer(norm(x)) without channel mixers, learned positions except for state spaces, and a read-out tied to
the embedding, as in the paper, and as there linear layers of softmax attention start with a deviation of 0.02: with
larger weights it gives a value of the sequence at random for longer. Only places with a label are scored.
"""

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
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
from mereo.models.weights import load_tensors, save_tensors
from mereo.pictures import new_figure, save_figure
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
PICTURE, ACCURACY = "kernels.png", "accuracy.png"

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


def make_network(name: str, n: int, length: int) -> RecallModel:
    """A network with a mixer of n states."""
    return RecallModel(partial(MIXERS[name], n), length, positions=name not in STATE_SPACES)


class Recalls:
    """Trainings on sequences of one length; those whose file is in the output folder are not made again.

    Args:
        length: of the sequences.
        settings: of the experiment.
    """

    def __init__(self, length: int, settings: Settings) -> None:
        self.length, self.settings = length, settings
        self.epochs, self.batch_size = settings.epochs or EPOCHS, settings.batch_size or BATCH
        count, tested = settings.limit or SEQUENCES, settings.images or TESTED
        self.train, self.held, self.test = (
            make_sequences(length, PAIRS[length], VOCAB, seed, number)
            for seed, number in ((0, count), (1, tested), (2, tested))
        )

    def accuracy(self, name: str, n: int) -> float:
        """The mean of the seeds in per cent, at the rate that answers most of the held-out queries with seed 0."""
        rate = self._best(name, n)
        mean = statistics.mean(self._numbers(name, n, rate, seed)["tested"] for seed in range(self.settings.seeds))
        self.settings.say(f"{name}, n = {n}, length {self.length}: {100 * mean:.1f} %")
        return 100 * mean

    def network(self, name: str, n: int) -> RecallModel:
        """The network of seed 0 at that rate."""
        model = make_network(name, n, self.length)
        model.load_state_dict(load_tensors(self._path(name, n, self._best(name, n), 0))[0])
        return model.eval()

    def _best(self, name: str, n: int) -> float:
        return max(RATES, key=lambda rate: self._numbers(name, n, rate, 0)["held"])

    def _path(self, name: str, n: int, rate: float, seed: int) -> Path:
        words = f"{name}, {n}, {self.length}, {len(self.train)}, {self.epochs}, {self.batch_size}, {rate:g}, {seed}"
        return self.settings.folder / "networks" / f"{words.replace(', ', '-').replace(' ', '_')}.safetensors"

    def _numbers(self, name: str, n: int, rate: float, seed: int) -> dict[str, Any]:
        """The shares of the held-out and the test queries that a network answers, which is trained unless it was."""
        path = self._path(name, n, rate, seed)
        if path.exists():
            return load_tensors(path)[1]
        model = self._trained(name, n, rate, seed)
        numbers = {"held": accuracy(model, self.held), "tested": accuracy(model, self.test)}
        path.parent.mkdir(exist_ok=True)
        save_tensors(path, model.state_dict(), numbers)
        return numbers

    def _trained(self, name: str, n: int, rate: float, seed: int) -> RecallModel:
        torch.manual_seed(seed)
        device = choose_device(self.settings.device or "cpu")
        model = make_network(name, n, self.length).to(device)

        def loss(batch: Batch) -> Tensor:
            assert batch.tokens is not None
            asked = batch.labels >= 0
            return F.cross_entropy(model.forward_head(model.forward_features(batch.tokens)[asked]), batch.labels[asked])

        fit(
            loss, model.parameters(), self.train, epochs=self.epochs, batch_size=self.batch_size, lr=rate,
            weight_decay=WEIGHT_DECAY, second_moment=SECOND_MOMENT, warmup_epochs=WARMUP_EPOCHS, seed=seed,
            device=device, title=f"{name}, n = {n}, length {self.length}, rate {rate:g}", say=self.settings.say,
        )  # fmt: skip
        return model.eval()


def run(settings: Settings) -> dict[str, Any]:
    """A table and a panel for each length, and the kernels of the first layers on one sequence of the first length."""
    lengths = {str(length): length for length in PAIRS}
    for each in settings.variants:
        check_choice("variants", each, [*GROUPS, *lengths])
    chosen = [lengths[each] for each in settings.variants if each in lengths] or [min(PAIRS)]
    groups = [each for each in settings.variants if each in GROUPS] or list(GROUPS)
    kernels = dict[str, Recurrence]()
    tables: dict[str, list[dict[str, Any]]] = {}
    panels: dict[int, dict[str, dict[int, float]]] = {}
    for length in chosen:
        panels[length] = {}
        recalls = Recalls(length, settings)
        title = f"Accuracy in %, {PAIRS[length]} queries in {length} tokens, {len(recalls.train):,} sequences"
        rows = tables[title] = []
        for group in groups:
            for name in GROUPS[group]:
                sizes = STATES[:1] if group == "fixed" else STATES
                found = panels[length][name] = {n: recalls.accuracy(name, n) for n in sizes}
                rows.append({"mixer": name, **{f"n = {n}": found.get(n) for n in STATES}})
                if length == chosen[0]:
                    shown = recalls.network(name, sizes[0] if group == "fixed" else SHOWN)
                    kernels[name] = _first_layer(shown, recalls.test.tokens[:1])
    draw_accuracy(panels, settings.folder / ACCURACY)
    draw_kernels(kernels, settings.folder / PICTURE)
    errors = [{"mixer": name, "error": made.error} for name, made in kernels.items()]
    return {
        "tables": {**tables, "Largest difference between a mixer and its recurrence": errors},
        "notes": [
            "A value taken from the sequence at random is right once in as many draws as there are pairs.",
            f"The states of the last mixers do not depend on n; softmax attention by features of degree {DEGREE}.",
        ],
        "pictures": [ACCURACY, PICTURE],
    }


def draw_accuracy(panels: Mapping[int, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """A panel for each length with a line for each mixer over n, dashed for mixers whose states do not depend on it.

    Args:
        panels: length -> mixer -> n -> accuracy in per cent.
        path: of the PNG.
    """
    figure = new_figure(3.6 * len(panels) + 2.8, 3.6)
    shown = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (length, mixers) in zip(shown, panels.items(), strict=True):
        for name, values in mixers.items():
            fixed = name in GROUPS["fixed"]
            color = f"C{[*(GROUPS['fixed'] if fixed else MIXERS)].index(name)}"
            line = dict.fromkeys(STATES, *values.values()) if fixed else values
            axes.plot([*line], [*line.values()], "--" if fixed else "o-", color=color, label=name)
        axes.axhline(100 / PAIRS[length], color="0.6", linewidth=1, linestyle=":", label="a value at random")
        axes.set(title=f"{length} tokens, {PAIRS[length]} pairs", xlabel="n", xscale="log", ylim=(0, 104))
        axes.set_xticks(STATES, [str(n) for n in STATES], minor=False)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    shown[0].set_ylabel("accuracy in %")
    shown[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    save_figure(figure, path)


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
