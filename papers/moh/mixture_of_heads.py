"""Mixture of heads: does a network keep its accuracy when each token uses some of the heads, and are all heads used?

A small transformer is trained with all heads, and then continued with 75 and with 50 % of them for each token; the same
networks with mixtures are also trained from the start. All see the same images in the same order.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import added_losses, record
from mereo.data import Batch, Splits
from mereo.mechanisms.attention import HeadRouter
from mereo.mechanisms.attention.sparse import BALANCE_WEIGHT
from mereo.surgery import moh
from papers.common.deep_networks import PatchBlock
from papers.common.fitting import batches, fit
from papers.common.settings import Settings

SHARES = (0.75, 0.5)
DIM, HEADS, DEPTH, PATCH, SIZE = 64, 8, 3, 2, 16
EPOCHS, FURTHER, BATCH, RATE = 8, 2, 64, 2e-3


class _Transformer(nn.Module):
    """Patches, positions, blocks, the mean of the tokens, a linear layer."""

    def __init__(self, channels: int, side: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, DIM, PATCH, PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (side // PATCH) ** 2, DIM))
        self.blocks = nn.Sequential(*(PatchBlock(DIM, HEADS, 2 * DIM) for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def _train(
    model: nn.Module, splits: Splits, settings: Settings, title: str, epochs: int, rate: float, seed: int
) -> None:
    """Cross-entropy, and the balance of heads if there are routers."""
    device = settings.chosen_device()
    model.to(device).train()

    def loss(batch: Batch) -> Tensor:
        value = F.cross_entropy(model(2 * batch.images - 1), batch.labels)
        return value + sum(added_losses(model).values(), torch.zeros_like(value))

    fit(
        loss, model.parameters(), splits.train, epochs=epochs, batch_size=settings.batch_size or BATCH, lr=rate,
        device=device, title=title, say=lambda line: None, seed=seed,
    )  # fmt: skip


@torch.no_grad()
def _accuracy(model: nn.Module, splits: Splits, settings: Settings) -> float:
    device, right = settings.chosen_device(), 0
    model.eval()
    for batch in batches(splits.test, 250, device):
        right += int((model(2 * batch.images - 1).argmax(1) == batch.labels).sum())
    return 100 * right / len(splits.test)


@torch.no_grad()
def _use(model: nn.Module, splits: Splits, settings: Settings) -> tuple[float, float]:
    """Smallest and largest share of tokens for which a routed head acts, over all layers; 1, 1 without routers."""
    routers = {name: m for name, m in model.named_modules() if isinstance(m, HeadRouter)}
    if not routers:
        return 1.0, 1.0
    batch = splits.test.batch(torch.arange(min(100, len(splits.test))))
    with record(model.eval()) as trace:
        model(2 * batch.images.to(settings.chosen_device()) - 1)
    often = torch.cat(
        [(trace[f"{name}.gates"][..., m.shared :] != 0).float().mean((0, 1)) for name, m in routers.items()]
    )
    return float(often.min()), float(often.max())


def run(settings: Settings) -> dict[str, Any]:
    """A table: accuracy and use of heads, of networks continued from the dense one and trained from the start."""
    data = str(settings.data)
    splits = settings.splits(SIZE)
    channels, classes = splits.train.image_shape[0], len(splits.class_names)
    epochs = settings.epochs or EPOCHS
    by_name: dict[str, list[tuple[float, float, float]]] = {}

    def note(name: str, model: nn.Module) -> None:
        result = (_accuracy(model, splits, settings), *_use(model, splits, settings))
        by_name.setdefault(name, []).append(result)
        settings.say(f"{name}: test {result[0]:.2f} %")

    for seed in range(settings.seeds):
        torch.manual_seed(seed)
        dense = _Transformer(channels, SIZE, classes)
        _train(dense, splits, settings, "all heads", epochs, RATE, seed)
        note("all heads", dense)
        for share in SHARES:
            without = moh(dense, share)
            note(f"{share:.0%} of heads, not trained further", without)
        for share in (1.0, *SHARES):
            # With all heads this is the control: the same number of further steps.
            model = moh(dense, share)
            _train(model, splits, settings, "continued", settings.epochs or FURTHER, RATE / 4, seed + 1)
            note(f"{share:.0%} of heads, continued", model)
        for share in SHARES:
            torch.manual_seed(seed)
            model = moh(_Transformer(channels, SIZE, classes), share, routing="tokens")
            _train(model, splits, settings, "from the start", epochs, RATE, seed)
            note(f"{share:.0%} of heads, from the start", model)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    rows = [
        {
            "network": name,
            "test %": mean([each[0] for each in results]),
            "least used routed head, tokens %": 100 * mean([each[1] for each in results]),
            "most used, tokens %": 100 * mean([each[2] for each in results]),
        }
        for name, results in by_name.items()
    ]
    return {
        "tables": {f"{DEPTH} layers of {HEADS} heads, {len(splits.train):,} images of {data}": rows},
        "notes": [
            f"{epochs} epochs, continued for {settings.epochs or FURTHER}; Adam at {RATE:g} and {RATE / 4:g}, balance"
            f" loss times {BALANCE_WEIGHT:g}. Continued networks choose heads by their queries, the others by routers.",
        ],
        "pictures": [],
        "data": data,
    }
