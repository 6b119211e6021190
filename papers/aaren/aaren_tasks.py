"""Aaren and causal attention of the same size on four generated tasks: forecasts, event times, classes, decisions."""

import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.layers import DecoderBlock
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.scan import Aaren
from mereo.pictures import new_figure, save_figure
from mereo.training.step import descend
from papers.common.settings import Settings

DIM, DEPTH, HEADS, HIDDEN, TOKENS = 32, 4, 4, 64, 48
BATCH, RATE, STEPS, EPOCHS, TESTED = 32, 3e-3, 100, 6, 1000
"""Steps of an epoch, and sequences of the test."""
MIXERS: dict[str, Callable[[], nn.Module]] = {
    "Aaren": lambda: Aaren(DIM, HEADS),
    "causal attention": lambda: MultiHeadAttention(DIM, HEADS, causal=True),
}
CLASSES = 4
PICTURE = "tasks.png"


class Examples(NamedTuple):
    """Sequences of a task.

    Attributes:
        inputs: (batch, tokens, channels).
        wanted: what a head predicts at each token, (batch, tokens, ...).
    """

    inputs: Tensor
    wanted: Tensor


class Stack(nn.Module):
    """Decoder blocks of a mixer between two linear layers, with sines for positions.

    Shapes: (batch, tokens, channels) -> (batch, tokens, outputs).
    """

    def __init__(self, mixer: str, channels: int, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(channels, DIM), nn.Linear(DIM, outputs)
        self.norm = nn.LayerNorm(DIM)
        self.blocks = nn.ModuleList(DecoderBlock(DIM, MIXERS[mixer](), HIDDEN, 0.0, nn.GELU) for _ in range(DEPTH))
        rates = 1000 ** (-torch.arange(DIM // 2) / (DIM // 2))
        angles = torch.arange(TOKENS).unsqueeze(1) * rates
        self.register_buffer("positions", torch.cat((angles.sin(), angles.cos()), 1))

    def forward(self, inputs: Tensor) -> Tensor:
        positions = self.positions
        assert isinstance(positions, Tensor)
        x = self.embedding(inputs) + positions[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def waves(count: int, draws: torch.Generator) -> Examples:
    """Two sines of drawn periods and phases with noise; the next value is wanted at each token."""
    period = 4 + 12 * torch.rand(count, 2, 1, generator=draws)
    phase = 2 * math.pi * torch.rand(count, 2, 1, generator=draws)
    series = (2 * math.pi * torch.arange(TOKENS + 1) / period + phase).sin().sum(1)
    series = series + 0.1 * torch.randn(series.shape, generator=draws)
    return Examples(series[:, :-1, None], series[:, 1:, None])


def hawkes(count: int, draws: torch.Generator) -> Examples:
    """Times between events that excite further ones: intensity 0.2 + 0.8 sum_i exp(-(t - t_i)); logarithms.

    The next time is drawn by Ogata's thinning, whose bound is the intensity right after the last candidate.
    """
    excited, steps = torch.zeros(count), []
    for _ in range(TOKENS + 1):
        waited, open_, level = torch.zeros(count), torch.ones(count, dtype=torch.bool), excited.clone()
        while open_.any():
            bound = 0.2 + level
            gap = -torch.rand(count, generator=draws).clamp(min=1e-9).log() / bound
            decayed = level * (-gap).exp()
            accepted = torch.rand(count, generator=draws) * bound < 0.2 + decayed
            waited = torch.where(open_, waited + gap, waited)
            level = torch.where(open_, decayed, level)
            open_ = open_ & ~accepted
        excited = level + 0.8
        steps.append(waited.clamp(min=1e-4).log())
    logs = torch.stack(steps, 1)
    return Examples(logs[:, :-1, None], logs[:, 1:, None])


def processes(count: int, draws: torch.Generator) -> Examples:
    """Autoregressive series of two steps, one of four each; the number of the process is wanted at each token."""
    first = torch.tensor([0.9, 0.5, 0.2, -0.4])
    second = torch.tensor([-0.3, 0.2, -0.6, 0.2])
    kind, noise = torch.randint(CLASSES, (count,), generator=draws), torch.randn(count, TOKENS + 20, generator=draws)
    values = [torch.zeros(count), torch.zeros(count)]
    for step in range(TOKENS + 20):
        values.append(first[kind] * values[-1] + second[kind] * values[-2] + noise[:, step])
    series = torch.stack(values[-TOKENS:], 1).unsqueeze(-1)
    return Examples(series, kind.unsqueeze(1).expand(-1, TOKENS))


def moved(place: Tensor, action: Tensor, draws: torch.Generator) -> Tensor:
    """The next place of a point: at most 0.1 in each direction, with noise."""
    return place + 0.1 * action.clamp(-1, 1) + 0.02 * torch.randn(place.shape, generator=draws)


def journeys(count: int, draws: torch.Generator) -> Examples:
    """Points that go to a goal shown at the first token only, some better than others; the action is wanted.

    A token has the return still to come (a token), the place, the goal or zeros, and the action before.
    """
    place, goal = (2 * torch.rand(count, 2, generator=draws) - 1 for _ in range(2))
    skill, before = torch.rand(count, 1, generator=draws), torch.zeros(count, 2)
    places, actions, rewards = [], [], []
    for _ in range(TOKENS):
        aimed, idle = 10 * (goal - place), torch.randn(count, 2, generator=draws)
        action = torch.where(torch.rand(count, 1, generator=draws) < skill, aimed, idle).clamp(-1, 1)
        places.append(torch.cat((place, before), 1))
        place, before = moved(place, action, draws), action
        actions.append(action)
        rewards.append(-(place - goal).norm(dim=1))
    to_come = torch.stack(rewards, 1).flip(1).cumsum(1).flip(1) / TOKENS
    shown = torch.zeros(count, TOKENS, 2)
    shown[:, 0] = goal
    inputs = torch.cat((to_come.unsqueeze(-1), torch.stack(places, 1), shown), 2)
    return Examples(inputs, torch.stack(actions, 1))


@torch.inference_mode()
def reward_of(model: Stack | None, draws: torch.Generator) -> float:
    """The mean reward of a step if the model acts, asked for a return of -0.2; of drawn actions if there is none."""
    place, goal = (2 * torch.rand(TESTED, 2, generator=draws) - 1 for _ in range(2))
    before, inputs, total = torch.zeros(TESTED, 2), torch.zeros(TESTED, 0, 7), 0.0
    to_come = torch.full((TESTED, 1), -0.2)
    for step in range(TOKENS):
        shown = goal if step == 0 else torch.zeros_like(goal)
        inputs = torch.cat((inputs, torch.cat((to_come, place, before, shown), 1).unsqueeze(1)), 1)
        action = torch.randn(TESTED, 2, generator=draws) if model is None else model(inputs)[:, -1]
        place, before = moved(place, action, draws), action.clamp(-1, 1)
        reward = -(place - goal).norm(dim=1)
        total += reward.mean().item() / TOKENS
        to_come = (to_come - reward.unsqueeze(1) / TOKENS).clamp(max=0)
    return total


def squares(out: Tensor, wanted: Tensor) -> Tensor:
    """The mean squared error."""
    return F.mse_loss(out, wanted)


def log_normal(out: Tensor, wanted: Tensor) -> Tensor:
    """Minus the log density of times whose logarithms are normal, without what does not depend on the model."""
    middle, log_deviation = out.split(1, -1)
    return (log_deviation + 0.5 * ((wanted - middle) / log_deviation.exp()).square()).mean() + 0.5 * math.log(
        2 * math.pi
    )


def classes(out: Tensor, wanted: Tensor) -> Tensor:
    """The cross-entropy of all tokens."""
    return F.cross_entropy(out.flatten(0, 1), wanted.flatten())


class Task(NamedTuple):
    """One task.

    Attributes:
        make: its sequences.
        channels, outputs: of the model.
        loss: of the outputs.
        measure: the name of the figure of the table, and whether more is better.
    """

    make: Callable[[int, torch.Generator], Examples]
    channels: int
    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    measure: str
    more: bool = False


TASKS = {
    "forecasts": Task(waves, 1, 1, squares, "squared error"),
    "event times": Task(hawkes, 1, 2, log_normal, "nats an event"),
    "classes": Task(processes, 1, CLASSES, classes, "accuracy %, last token", True),
    "decisions": Task(journeys, 7, 2, squares, "reward a step", True),
}


def train(mixer: str, name: str, seed: int, epochs: int, settings: Settings) -> float:
    """The figure of one training."""
    torch.manual_seed(seed)
    task, draws, steps = TASKS[name], torch.Generator().manual_seed(seed), epochs * STEPS
    model = Stack(mixer, task.channels, task.outputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(steps):
        examples = task.make(BATCH, draws)
        rate = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        descend(optimizer, rate, task.loss(model(examples.inputs), examples.wanted))
    found = figure_of(model.eval(), name)
    settings.say(f"{name}, {mixer}, seed {seed}: {task.measure} {found:.4f}")
    return found


@torch.inference_mode()
def figure_of(model: Stack, name: str) -> float:
    """The figure of the table on new sequences."""
    task, draws = TASKS[name], torch.Generator().manual_seed(1000)
    if name == "decisions":
        return reward_of(model, draws)
    examples = task.make(TESTED, draws)
    out = model(examples.inputs)
    if name == "classes":
        return 100 * (out[:, -1].argmax(-1) == examples.wanted[:, -1]).double().mean().item()
    return task.loss(out, examples.wanted).item()


def run(settings: Settings) -> dict[str, Any]:
    """The figures of both mixers on each task, their difference seed by seed, and a picture."""
    epochs, rows = settings.epochs or EPOCHS, []
    points: dict[str, dict[str, list[float]]] = {}
    for name in settings.chosen(TASKS):
        points[name] = {m: [train(m, name, seed, epochs, settings) for seed in range(settings.seeds)] for m in MIXERS}
        row: dict[str, Any] = {
            "task": name,
            "figure": TASKS[name].measure,
            "better": "more" if TASKS[name].more else "less",
        }
        for mixer, values in points[name].items():
            row |= {mixer: statistics.mean(values), f"{mixer}, least": min(values), f"{mixer}, most": max(values)}
        rows.append(row)
    sizes = [
        {"network": m, "parameters of forecasts": sum(p.numel() for p in Stack(m, 1, 1).parameters())} for m in MIXERS
    ]
    _draw(points, settings)
    by_chance = reward_of(None, torch.Generator().manual_seed(1000))
    return {
        "tables": {f"{epochs * STEPS} steps, {settings.seeds} seeds": rows, "Sizes": sizes},
        "notes": [f"Drawn actions have a reward of {by_chance:.3f} a step. {DEPTH} layers of {DIM}, {TOKENS} tokens."],
        "pictures": [PICTURE],
    }


def _draw(points: dict[str, dict[str, list[float]]], settings: Settings) -> None:
    """The figures of all seeds, a panel for each task."""
    figure = new_figure(2.4 * len(points), 2.8)
    for axes, (name, by_mixer) in zip(figure.subplots(1, len(points), squeeze=False)[0], points.items(), strict=True):
        for place, values in enumerate(by_mixer.values()):
            axes.plot([place] * len(values), values, "o", alpha=0.8)
        axes.set_xticks(range(len(MIXERS)), list(MIXERS), fontsize=7)
        axes.set(xlim=(-0.5, len(MIXERS) - 0.5), ylabel=TASKS[name].measure)
        axes.set_title(name, fontsize=9, loc="left")
        axes.grid(alpha=0.3)
    save_figure(figure, settings.folder / PICTURE)
