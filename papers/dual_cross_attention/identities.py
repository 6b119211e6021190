"""Walking figures found again by a small vision transformer, with and without dual cross-attention."""

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

import mereo
from mereo.core import added_losses
from mereo.core.initialise import xavier_linears
from mereo.core.triplets import hard_triplet_loss
from mereo.data import Batch, load_splits
from mereo.data.images import Images
from mereo.data.sets.figures import SIZE
from mereo.surgery import dual_embedding
from mereo.tasks.embedding import EmbeddingMetrics
from papers.common.fitting import follow
from papers.common.measures import with_spread
from papers.common.settings import Settings

PATCH, DIM, DEPTH, HEADS, SHARE, MARGIN = 8, 64, 4, 4, 0.3, 0.3
STEPS, IDENTITIES, EACH, RATE = 300, 8, 4, 1e-3
"""Steps of a training, identities of a batch, images of each of them, and the largest learning rate."""
VARIANTS: Mapping[str, tuple[float | None, bool]] = {
    "attention alone": (None, False),
    "global-local": (SHARE, False),
    "pair-wise": (None, True),
    "both": (SHARE, True),
}
"""The share of the patches that look again, and whether images have partners."""


def standardised(images: Tensor) -> Tensor:
    """Pixels in [-1, 1]."""
    return 2 * images - 1


def draw_batch(labels: Tensor, random: torch.Generator) -> Tensor:
    """The numbers of `EACH` images of each of `IDENTITIES` identities."""
    people = labels.unique()
    chosen = people[torch.randperm(len(people), generator=random)[:IDENTITIES]]
    parts = [(labels == person).nonzero().flatten() for person in chosen]
    return torch.cat([part[torch.randperm(len(part), generator=random)[:EACH]] for part in parts])


def train(variant: tuple[float | None, bool], images: Images, labels: Tensor, seed: int) -> Any:
    """A network that learned the identities by cross-entropy and the hardest triplets of each answer's class token."""
    torch.manual_seed(seed)
    network: Any = mereo.create_model(
        "vit_tiny", num_classes=int(labels.max()) + 1, img_size=SIZE, patch_size=PATCH, embed_dim=DIM, depth=DEPTH,
        num_heads=HEADS,
    )  # fmt: skip
    xavier_linears(network)
    share, pairwise = variant
    plain = share is None and not pairwise
    if not plain:
        network = mereo.dual_cross_attention(network, share, pairwise=pairwise, triplet=MARGIN)
    schedule = OneCycleLR(torch.optim.AdamW(network.parameter_groups(0.05), RATE), RATE, total_steps=STEPS)
    random = torch.Generator().manual_seed(seed)
    network.train()
    for _ in range(STEPS):
        batch = images.batch(draw_batch(labels, random))
        if plain:
            features = network.forward_features(standardised(batch.images))
            loss = F.cross_entropy(network.forward_head(features), batch.labels)
            loss = loss + hard_triplet_loss(features[:, 0], batch.labels, MARGIN)
        else:
            loss = F.cross_entropy(network(standardised(batch.images)), batch.labels)
            loss = loss + sum(added_losses(network, batch.labels).values())
        follow(schedule, loss)
    return network.eval()


@torch.inference_mode()
def measure(network: Any, test: Batch) -> dict[str, float]:
    """Retrieval among new identities, every image a query: by the class tokens of all answers, and of the first one."""
    dual = hasattr(network, "dual")
    parts = [
        dual_embedding(network, part) if dual else network.forward_features(part)[:, 0]
        for part in standardised(test.images).split(160)
    ]
    vectors, figures = torch.cat(parts), dict[str, float]()
    for title, own in {"": vectors, ", first answer": vectors[:, :DIM]}.items():
        metrics = EmbeddingMetrics()
        metrics.update(F.normalize(own, dim=1), test)
        found = metrics.compute()
        figures |= {f"mAP{title}": 100 * found["mean_average_precision"]}
        figures |= {f"recall@1{title}": 100 * found["recall_at_1"]}
    return figures


def run(settings: Settings) -> dict[str, Any]:
    """A table of retrieval by the way of training."""
    splits = load_splits("figures", img_size=SIZE, limit=settings.limit)
    labels = splits.train.strata
    test = splits.test.batch(torch.arange(min(settings.images or 320, len(splits.test))))
    runs: dict[str, list[dict[str, float]]] = {}
    for seed in range(settings.seeds):
        for name in settings.chosen(VARIANTS):
            began = time.process_time()
            network = train(VARIANTS[name], splits.train, labels, seed)
            result = {**measure(network, test), "seconds": time.process_time() - began}
            runs.setdefault(name, []).append(result)
            settings.say(
                f"seed {seed}, {name}: mAP {result['mAP']:.1f}, recall@1 {result['recall@1']:.1f} %,"
                f" {result['seconds']:.0f} s"
            )
    rows = [{"training by": name, **with_spread("mAP", each)} for name, each in runs.items()]
    return {
        "tables": {f"{len(test.labels.unique())} new figures": rows},
        "notes": [
            f"{DEPTH} layers of {DIM}, {SIZE[0]} x {SIZE[1]} pixels in patches of {PATCH}, R = {SHARE:.0%}, {STEPS}"
            f" steps of {IDENTITIES} figures with {EACH} images each, AdamW at {RATE:g} in one cycle, margin {MARGIN};"
            f" {settings.seeds} seeds. Spread: standard deviation over the seeds. Seconds are of a processor.",
        ],
        "pictures": [],
    }
