"""Multi-query associative recall by causal mixers: accuracy over the size of the state, and their kernels side by side.

Two blocks x + mixer(norm(x)) without channel mixers, learned positions except for state spaces, and a read-out tied to
the embedding, as in the paper, and as there linear layers of softmax attention start with a deviation of 0.02: with
larger weights it gives a value of the sequence at random for longer. Only places with a label are scored.

The paper trains a network for each length and number of pairs. Here one network is trained from easy to hard, first on
sequences without gaps, whose number of pairs doubles, then on the four lengths of the paper in turn, and tested at
these. Without gaps a quarter of the tokens has an answer, where the shortest sequences of the paper have a sixteenth,
so that a few minutes on one core teach a network to recall.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
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
from mereo.explain import draw_kernels
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.scan import RGLRU, S6, SSD, Aaren, LightningAttention, NormalisedAttention, QuasiLSTM
from mereo.models.sequence_model import SequenceModel
from mereo.models.weights import load_tensors, save_tensors
from mereo.pictures import new_figure, save_figure
from mereo.runtime.device import choose_device
from mereo.tasks import Recall
from mereo.training.step import descend
from papers.common.fitting import batches, progress
from papers.common.settings import Settings

DIM, DEPTH, VOCAB, STATES = 64, 2, 256, (4, 16, 64)
RATES, ENOUGH = (3e-3, 1e-2, 1e-3), 0.98
"""Rates in order; the first that answers so many of the held-out queries counts, or the best of all."""
WEIGHT_DECAY, SECOND_MOMENT, WARMUP, CLIP = 0.1, 0.98, 200, 1.0
"""Of AdamW, its steps of warm-up and the largest norm of the gradients; with a beta_2 of 0.999, softmax attention too
gives a value of the sequence at random for longer."""
WITHOUT_GAPS = {4 * pairs: pairs for pairs in (2, 4, 8, 16, 32, 64)}
STAGES = (*({length: pairs} for length, pairs in WITHOUT_GAPS.items()), PAIRS)
"""Lengths with their pairs, trained on in turn; stages follow one another."""
STEPS, TOKENS = 2000, 2048
"""Steps of a stage, tokens of a batch."""
LEARNED, STALLED = 0.05, 0.8
"""A stage but the last ends early when the running mean of its losses is below `LEARNED`. Where that mean stays above
`STALLED` times the loss of a value at random, the last stage follows at once."""
PATIENCE = 3
"""The first stage, in which recall begins, has up to so many times its steps before it is given up."""
TESTED = 1000
SHOWN, DEGREE = 4, 16
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
    "softmax": {"softmax attention": softmax_attention},
    "linear": {"linear attention": lambda n: NormalisedAttention(DIM, qk_dim=n, normaliser="sum")},
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


def make_network(name: str, n: int) -> RecallModel:
    """A network with a mixer of n states."""
    return RecallModel(partial(MIXERS[name], n), max(PAIRS), positions=name not in STATE_SPACES)


class Recalls:
    """Trainings through all stages; those whose file is in the output folder are not made again.

    Args:
        settings: of the experiment.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = choose_device(settings.device or "cpu")
        self.limit, tested = settings.limit or STEPS * TOKENS, settings.images or TESTED
        self.held, self.test = (
            {length: make_sequences(length, pairs, VOCAB, seed, tested) for length, pairs in PAIRS.items()}
            for seed in (1, 2)
        )

    def accuracy(self, name: str, n: int) -> dict[int, float]:
        """Length -> the mean of the seeds in per cent, at the rate that is best on held-out sequences with seed 0."""
        rate = self._best(name, n)
        found = [self._numbers(name, n, rate, seed)["tested"] for seed in range(self.settings.seeds)]
        means = {length: 100 * statistics.mean(each[str(length)] for each in found) for length in PAIRS}
        words = ", ".join(f"{mean:.1f} % of {length} tokens" for length, mean in means.items())
        self.settings.say(f"{name}, n = {n}: {words}")
        return means

    def network(self, name: str, n: int) -> RecallModel:
        """The network of seed 0 at that rate."""
        model = make_network(name, n)
        model.load_state_dict(load_tensors(self._path(name, n, self._best(name, n), 0))[0])
        return model.eval()

    def _best(self, name: str, n: int) -> float:
        found = dict[float, float]()
        for rate in RATES:
            found[rate] = statistics.mean(self._numbers(name, n, rate, 0)["held"].values())
            if found[rate] >= ENOUGH:
                break
        return max(found, key=found.__getitem__)

    def _path(self, name: str, n: int, rate: float, seed: int) -> Path:
        words = f"{name}, {n}, {self.limit}, {rate:g}, {seed}"
        return self.settings.folder / "networks" / f"{words.replace(', ', '-').replace(' ', '_')}.safetensors"

    def _numbers(self, name: str, n: int, rate: float, seed: int) -> dict[str, Any]:
        """The shares of held-out and test queries that a network answers by length, which is trained unless it was."""
        path = self._path(name, n, rate, seed)
        if path.exists():
            return load_tensors(path)[1]
        model = self._trained(name, n, rate, seed)
        numbers = {
            part: {str(length): accuracy(model, data) for length, data in sets.items()}
            for part, sets in (("held", self.held), ("tested", self.test))
        }
        path.parent.mkdir(exist_ok=True)
        save_tensors(path, model.state_dict(), numbers)
        return numbers

    def _trained(self, name: str, n: int, rate: float, seed: int) -> RecallModel:
        torch.manual_seed(seed)
        model = make_network(name, n).to(self.device)
        optimizer = torch.optim.AdamW(model.parameters(), rate, (0.9, SECOND_MOMENT), weight_decay=WEIGHT_DECAY)
        done, stalled = 0, False
        for number, stage in enumerate(STAGES):
            last, steps, mean = stage is STAGES[-1], self._steps(stage), math.log(VOCAB)
            if stalled and not last:
                continue
            parts = range(1 if number else PATIENCE)
            found = chain.from_iterable(self._batches(stage, steps, 10 + number + 100 * part) for part in parts)
            title = f"{name}, n = {n}, rate {rate:g}, {' and '.join(map(str, stage))} tokens"
            report = progress(self.settings.say, title)
            for step, batch in enumerate(found):
                assert batch.tokens is not None
                asked = batch.labels >= 0
                scores = model.forward_head(model.forward_features(batch.tokens)[asked])
                loss = F.cross_entropy(scores, batch.labels[asked])
                decay = (1 + math.cos(math.pi * step / steps)) / 2 if last else 1.0
                clip = partial(nn.utils.clip_grad_norm_, model.parameters(), CLIP)
                descend(optimizer, rate * min(1.0, (done + 1) / WARMUP) * decay, loss, clip=clip)
                done, mean = done + 1, 0.98 * mean + 0.02 * loss.item()
                report(step + 1, len(parts) * steps)
                stalled = mean > STALLED * math.log(min(stage.values()))
                if not last and (mean < LEARNED or ((step + 1) % steps == 0 and not stalled)):
                    break
            self.settings.say(f"{title}: loss {mean:.3f} after {step + 1} steps")
        return model.eval()

    def _steps(self, stage: Mapping[int, int]) -> int:
        """The steps of a stage: fewer where the settings allow fewer sequences, and at least one."""
        return min(STEPS, -(-self.limit // (TOKENS // min(stage))))

    def _batches(self, stage: Mapping[int, int], steps: int, seed: int) -> Iterator[Batch]:
        """Batches of as many tokens each, of the lengths of a stage in turn."""
        sizes = {length: TOKENS // length for length in stage}
        count = -(-steps // len(stage))
        sets = (
            batches(make_sequences(length, stage[length], VOCAB, seed, count * size), size, self.device)
            for length, size in sizes.items()
        )
        return islice(chain.from_iterable(zip(*sets, strict=True)), steps)


def run(settings: Settings) -> dict[str, Any]:
    """The table, a panel for each length, and the kernels of the first layers on one of the shortest sequences."""
    recalls, shortest = Recalls(settings), min(PAIRS)
    rows, kernels = list[dict[str, Any]](), dict[str, Recurrence]()
    panels: dict[int, dict[str, dict[int, float]]] = {length: {} for length in PAIRS}
    for group in settings.chosen(GROUPS):
        for name in GROUPS[group]:
            sizes = STATES[:1] if group == "fixed" else STATES
            found = {n: recalls.accuracy(name, n) for n in sizes}
            for n, means in found.items():
                states = {"mixer": name, "n": None if group == "fixed" else n}
                rows.append(states | {f"{length} tokens": mean for length, mean in means.items()})
            for length, panel in panels.items():
                panel[name] = {n: means[length] for n, means in found.items()}
            shown = recalls.network(name, sizes[0] if group == "fixed" else SHOWN)
            kernels[name] = _first_layer(shown, recalls.test[shortest].tokens[:1])
    draw_accuracy(panels, settings.folder / ACCURACY)
    draw_kernels(kernels, settings.folder / PICTURE)
    errors = [{"mixer": name, "error": made.error} for name, made in kernels.items()]
    return {
        "tables": {"Accuracy in %": rows, "Largest difference between a mixer and its recurrence": errors},
        "notes": [
            "A value of the sequence at random: "
            + ", ".join(f"{100 / pairs:.1f} % of {length} tokens" for length, pairs in PAIRS.items()),
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
