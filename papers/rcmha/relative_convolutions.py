"""Four kinds of attention on text: with convolutions of queries, keys and values, relative positions, both and neither.

The networks read the same windows in the same order. Attention without relative positions has sines added to the
embedding.
"""

import math
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mereo.data import Batch, TokenWindows
from mereo.inference.evaluate import evaluate
from mereo.inference.footprint import stored_bytes
from mereo.models import create_model
from mereo.models.sequence import CausalTransformer
from mereo.models.sequence.rcmha import read_segment
from mereo.runtime.memory import resident_peak
from mereo.tasks import Language
from mereo.tasks.language import LanguageObjective, inputs_and_targets, token_losses
from papers.common.fitting import fit
from papers.common.measures import span
from papers.common.pictures import draw_runs
from papers.common.settings import Settings

VARIANTS: dict[str, dict[str, Any]] = {
    "MHA": {"kernel": 0, "reach": 0, "sines": True},
    "MDHA": {"reach": 0, "sines": True},
    "RMHA": {"kernel": 0},
    "RCMHA": {},
}
CONTEXT, DEPTH, BATCH, RATE = 128, 2, 16, 3e-3
WINDOWS, TESTED = 9600, 512
"""Windows to train on, an epoch by default, and to test on."""
MIB = 2**20
PICTURE = "bits.png"


def make(name: str, seed: int) -> CausalTransformer:
    """A network with its weights drawn from a seed."""
    torch.manual_seed(seed)
    model: Any = create_model("rcmha_tiny", depth=DEPTH, context=CONTEXT, **VARIANTS[name])
    return model


def _halves(test: TokenWindows) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of half windows, in the order of the text."""
    for window in range(len(test)):
        inputs, targets = inputs_and_targets(test.batch(torch.tensor([window])))
        yield from zip(inputs.split(CONTEXT // 2, 1), targets.split(CONTEXT // 2, 1), strict=True)


@torch.inference_mode()
def bits_with_memory(model: CausalTransformer, test: TokenWindows) -> float:
    """Bits per byte if the text is read in half windows, with a memory of half a window."""
    nats, count, memory = 0.0, 0, None
    for inputs, targets in _halves(test):
        scores, memory = read_segment(model.eval(), inputs, memory, CONTEXT // 2)
        total, counted = token_losses(scores, targets)
        nats, count = nats + total.item(), count + int(counted)
    return nats / count / math.log(2)


def memory_of_a_step(name: str, batch: Batch) -> tuple[float, float]:
    """MiB that a forward pass stores for the backward pass, and by which a step raises the memory of the process."""
    objective = LanguageObjective(make(name, 0).train())

    def step() -> None:
        objective(batch)[0].backward()

    step()  # what libraries load and the gradients are not counted
    peak = resident_peak(step)[0]
    return stored_bytes(objective, batch) / MIB, math.nan if peak is None else peak / MIB


def _train(name: str, train: TokenWindows, test: TokenWindows, settings: Settings, seed: int) -> dict[str, float]:
    """Bits per byte and accuracy of one training."""
    model = make(name, seed)
    objective = LanguageObjective(model.train())
    fit(
        lambda batch: objective(batch)[0], model.parameters(), train, epochs=settings.epochs or 1,
        batch_size=settings.batch_size or BATCH, lr=RATE, device=torch.device("cpu"), title=f"{name}, seed {seed}",
        say=settings.say, seed=seed,
    )  # fmt: skip
    found = evaluate(model, test, task=Language(), batch_size=32).values
    return found | ({} if model.sines else {"with memory": bits_with_memory(model, test)})


def run(settings: Settings) -> dict[str, Any]:
    """Tables of bits per byte and accuracy, of differences seed by seed, and of memory; a picture of the bits."""
    data, (train, whole) = str(settings.data), settings.windows(CONTEXT, WINDOWS)
    test = TokenWindows(whole.stream[: (settings.images or TESTED) * CONTEXT], CONTEXT)
    windows = min(settings.batch_size or BATCH, len(train))
    batch = train.batch(torch.arange(windows))
    memory = {name: memory_of_a_step(name, batch) for name in VARIANTS}
    runs = {name: [_train(name, train, test, settings, seed) for seed in range(settings.seeds)] for name in VARIANTS}

    def of(name: str, figure: str) -> list[float]:
        return [run[figure] for run in runs[name] if figure in run]

    rows: list[dict[str, Any]] = []
    bits = {name: of(name, "bits_per_byte") for name in VARIANTS}
    for name in VARIANTS:
        again = of(name, "with memory")
        behind = [own - other for own, other in zip(bits[name], bits["RCMHA"], strict=True)]
        rows.append(
            {
                "attention": name,
                "parameters": sum(p.numel() for p in make(name, 0).parameters()),
                **span("bits per byte", bits[name]),
                "above RCMHA, least": min(behind),
                "above RCMHA, most": max(behind),
                "accuracy %": 100 * statistics.mean(of(name, "accuracy")),
                "bits per byte with memory": statistics.mean(again) if again else None,
            }
        )
    draw_runs(bits, "attention", "bits per byte", settings.folder / PICTURE)
    ranked = sorted(rows, key=lambda row: row["bits per byte"])
    sizes = [{"attention": name, "stored MiB": stored, "peak MiB": peak} for name, (stored, peak) in memory.items()]
    seen = len(train) * CONTEXT * (settings.epochs or 1)
    return {
        "tables": {
            f"{len(test.content):,} bytes of {data}, after {seen:,} bytes of training, {settings.seeds} seeds": rows,
            f"Memory of a step with {windows} windows of {CONTEXT} bytes": sizes,
        },
        "notes": [
            "From best to worst: " + ", ".join(str(row["attention"]) for row in ranked) + ".",
            f"{DEPTH} layers, Adam at {RATE:g}, each window read by itself; with memory, half windows with the half"
            " before as memory. Stored: what the forward pass keeps for the backward pass.",
        ],
        "pictures": [PICTURE],
        "data": data,
    }
