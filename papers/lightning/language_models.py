"""Gated linear attention with decay compared with softmax attention of equal size: bits per byte, and tokens a second.

Both networks read the same windows in the same order and differ in their mixer of tokens only.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mereo.data import TokenWindows, load_splits
from mereo.errors import UsageError
from mereo.inference.evaluate import evaluate
from mereo.models import SequenceModel, create_model
from mereo.runtime.turns import median_seconds
from mereo.tasks import Language
from mereo.tasks.language import LanguageObjective, compressed_bits
from papers.common.fitting import fit
from papers.common.settings import Settings
from papers.lightning.speed_pictures import draw_speeds

NETWORKS = {"TNL": "tnl_tiny", "softmax attention": "causal_transformer_tiny"}
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
WINDOWS, BATCH, RATE = 9_600, 16, 3e-3
ROUNDS, STEPS = 5, 12
PICTURE = "tokens_per_second.png"


def make(network: str, seed: int, device: torch.device) -> SequenceModel:
    """A network with its weights drawn from a seed."""
    torch.manual_seed(seed)
    model = create_model(NETWORKS[network])
    assert isinstance(model, SequenceModel)
    return model.to(device)


def run(settings: Settings) -> dict[str, Any]:
    """Tables of bits per byte and of speed, and a picture of the speed over lengths."""
    data, device = settings.data or "pystdlib", settings.chosen_device()
    context = make("TNL", 0, device).context
    limit = WINDOWS if settings.limit is None else settings.limit
    splits = load_splits(data, length=context, root=settings.data_root, limit=limit)
    test = splits.test
    assert isinstance(test, TokenWindows)
    if settings.images is not None and settings.images < len(test):
        test = TokenWindows(test.stream[: settings.images * context], context)
    if not len(splits.train):
        raise UsageError(f"data is {data!r}, without a window to train on; give more text.")
    rows, trained = [], {}
    for network in NETWORKS:
        runs = [_train(network, splits.train, test, settings, seed, device) for seed in range(settings.seeds)]
        trained[network] = runs[0][0]
        rows.append(
            {
                "network": network,
                "parameters": sum(p.numel() for p in runs[0][0].parameters()),
                "bits per byte": statistics.mean(run[1] for run in runs),
                "tokens/s in training": round(statistics.median(run[2] for run in runs)),
            }
        )
    for name, bits in compressed_bits(test.content).items():
        rows.append({"network": name, "parameters": None, "bits per byte": bits, "tokens/s in training": None})
    whole = speeds(trained, device, _read_at_once)
    steps = speeds(trained, device, _read_one_more)
    draw_speeds({"tokens/s, read at once": whole, "tokens/s, one after the other": steps}, settings.folder / PICTURE)
    seen = limit * context * (settings.epochs or 1)
    return {
        "tables": {
            f"{len(test.content):,} bytes of {data}, after {min(seen, 10**12):,} bytes of training": rows,
            "Tokens a second, all tokens at once": _side_by_side(whole),
            "Tokens a second, one after the other, by the number of tokens before them": _side_by_side(steps),
        },
        "notes": [
            f"Adam at {RATE:g}, windows of {context} bytes, each read by itself also in the evaluation; the compressors"
            " read all test bytes as one file.",
            f"Speed: medians of {ROUNDS} interleaved rounds without gradients, {torch.get_num_threads()} threads.",
        ],
        "pictures": [PICTURE],
        "data": data,
        "speeds": {"at once": whole, "one after the other": steps},
    }


def _train(
    network: str, windows: Any, test: TokenWindows, settings: Settings, seed: int, device: torch.device
) -> tuple[SequenceModel, float, float]:
    """The trained network, its bits per byte, and its tokens a second in training."""
    model = make(network, seed, device)
    objective = LanguageObjective(model.train())
    epochs = settings.epochs or 1
    began = time.monotonic()
    fit(
        lambda batch: objective(batch)[0], model.parameters(), windows, epochs=epochs,
        batch_size=settings.batch_size or BATCH, lr=RATE, device=device, title=network, say=settings.say, seed=seed,
    )  # fmt: skip
    rate = epochs * len(windows) * model.context / (time.monotonic() - began)
    scores = evaluate(model, test, task=Language(), batch_size=32)
    return model.eval(), scores.values["bits_per_byte"], rate


def _read_at_once(model: SequenceModel, tokens: Tensor) -> tuple[Callable[[], object], int]:
    """All tokens in one pass, and how many that are."""
    return lambda: model(tokens), tokens.numel()


def _read_one_more(model: SequenceModel, tokens: Tensor) -> tuple[Callable[[], object], int]:
    """Some tokens, one after the other, behind those given."""
    _, state = model.extend(tokens)

    def steps() -> None:
        behind = state
        for t in range(STEPS):
            _, behind = model.step(tokens[:, t], behind)

    return steps, STEPS


@torch.inference_mode()
def speeds(
    models: dict[str, SequenceModel],
    device: torch.device,
    prepare: Callable[[SequenceModel, Tensor], tuple[Callable[[], object], int]],
) -> dict[str, dict[int, float]]:
    """Tokens a second of each network at each length: medians of rounds in which the networks take turns."""
    rates: dict[str, dict[int, float]] = {name: {} for name in models}
    for length in LENGTHS:
        tokens = torch.arange(length, device=device).remainder(256).unsqueeze(0)
        ready = {name: prepare(model, tokens) for name, model in models.items()}

        def timed(work: Callable[[], object]) -> None:
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        times = median_seconds({name: partial(timed, work) for name, (work, _) in ready.items()}, ROUNDS)
        for name, (_, count) in ready.items():
            rates[name][length] = count / times[name]
    return rates


def _side_by_side(rates: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    """A row a length: the speed of each network, and how many times as fast the first is as the second."""
    first, second = rates.values()
    return [
        {"tokens": length, **{name: round(rates[name][length]) for name in rates}, "times": first[length] / rate}
        for length, rate in second.items()
    ]
