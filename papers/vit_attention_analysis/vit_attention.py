"""A small vision transformer of Fashion-MNIST taken apart: heads pruned, their reach, and their patterns."""

import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR

import mereo
from mereo.data.batch import Batch
from mereo.data.images import Images
from mereo.data.load import Splits
from mereo.inference.evaluate import normalise
from mereo.measure.attention_hops import (
    RecordedAttention,
    expected_hop,
    hop_profile,
    pair_counts,
    recorded_attention,
    token_traffic,
)
from mereo.measure.attention_patterns import LABELS, Patterns, head_table, pattern_items, pattern_label, summarise
from mereo.measure.head_importance import head_importance, pruning_curve
from mereo.models import VisionModel
from mereo.pictures import new_figure, save_figure
from papers.common.fitting import follow
from papers.common.settings import Settings

SIDE, PATCH, WIDTH, DEPTH, HEADS = 28, 4, 48, 4, 4
STEPS, BATCH, LIMIT = 4000, 32, 54_000
MAPPED, EPOCHS, CLUSTERS, DRAWS = 30, 20, 8, 3
"""Images whose maps become patterns, epochs of the autoencoder, clusters, and random orders of pruning."""
METRICS = ("probability_drop", "divergence", "loss_increase", "flip_rate", "token_shift", "gradient", "keep_one")
PICTURES = ("heads.png", "patterns.png")


def train(model: VisionModel, images: Images, batch: int, seed: int) -> None:
    """AdamW with one cycle of the rate; images moved by up to one pixel, around the edges."""
    schedule = OneCycleLR(torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05), 2e-3, total_steps=STEPS)
    draws, cfg = torch.Generator().manual_seed(seed), model.pretrained_cfg
    model.train()
    for _ in range(STEPS):
        given = images.batch(torch.randint(len(images), (batch,), generator=draws))
        down, across = (int(torch.randint(-1, 2, (1,), generator=draws)) for _ in range(2))
        moved = given.images.roll((down, across), (2, 3))
        loss = F.cross_entropy(model(normalise(moved, cfg["mean"], cfg["std"])), given.labels)
        follow(schedule, loss)
    model.eval()


class Taken(NamedTuple):
    """A trained network taken apart.

    Attributes:
        importance: of each head by each metric, (layers, heads).
        curves: accuracies by the number of heads pruned, for each metric.
        found: attention of some images.
    """

    importance: dict[str, torch.Tensor]
    curves: dict[str, list[float]]
    found: RecordedAttention


def run(settings: Settings) -> dict[str, Any]:
    """Train, prune, and record; tables of heads, curves, hops and clusters, means over the seeds where it says so."""
    splits = settings.splits(SIDE, LIMIT, validation_fraction=0.1)
    test = splits.test.batch(torch.arange(min(settings.images or 200, len(splits.test))))
    taken = [_taken_apart(settings, splits, test, seed) for seed in range(settings.seeds)]
    importance, curves, found = taken[0]
    patterns = summarise(found.maps, found.prefix, k=CLUSTERS, epochs=EPOCHS)
    settings.say("patterns found")
    table = head_table(found.maps, found.grid, importance, found.prefix)
    clusters = _clusters(patterns, found)
    _draw_heads(curves, found, settings)
    _draw_patterns(patterns, found, clusters, settings.folder / PICTURES[1])
    over = f"means over {settings.seeds} seeds" if settings.seeds > 1 else "one seed"
    return {
        "tables": {
            f"accuracy % by heads pruned, the least important first; {over}": _means(
                [_by_pruned(each.curves) for each in taken]
            ),
            "heads: rank by each metric, 1 is the most important; seed 0": table,
            f"reach by depth; {over}": _means([_reach(each.found) for each in taken]),
            f"rank correlation of the metrics; {over}": _means([_agreement(each.importance) for each in taken]),
            f"clusters of {len(patterns.items)} maps; seed 0": clusters,
        },
        "pictures": list(PICTURES),
        "data": str(settings.data),
    }


def _taken_apart(settings: Settings, splits: Splits, test: Batch, seed: int) -> Taken:
    """Train a network, measure its heads, prune them, and record its attention."""
    torch.manual_seed(seed)
    model = mereo.create_model(
        "vit_tiny", num_classes=len(splits.class_names), in_chans=splits.train.image_shape[0], img_size=SIDE,
        patch_size=PATCH, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS,
    )  # fmt: skip
    train(model, splits.train, settings.batch_size or BATCH, seed)
    settings.say(f"seed {seed}: trained")
    batches = list(zip(test.images.split(50), test.labels.split(50), strict=True))
    importance = head_importance(model, batches) | head_importance(model, batches, mode="gradient")
    importance["keep_one"] = head_importance(model, batches, ["loss_increase"], mode="keep_one")["loss_increase"]
    settings.say(f"seed {seed}: heads measured")
    curves = _curves(model, batches, importance)
    settings.say(f"seed {seed}: heads pruned")
    few = normalise(test.images[:MAPPED], model.pretrained_cfg["mean"], model.pretrained_cfg["std"])
    return Taken(importance, curves, recorded_attention(model, few))


def _means(tables: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A table with the means of the numbers of several tables."""
    return [
        {
            name: value if isinstance(value, str) else statistics.mean(row[name] for row in rows)
            for name, value in rows[0].items()
        }
        for rows in zip(*tables, strict=True)
    ]


def _by_pruned(curves: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row for each number of pruned heads."""
    return [
        {"heads pruned": str(k), **{name: 100 * curve[k] for name, curve in curves.items()}}
        for k in range(1 + DEPTH * HEADS)
    ]


def _curves(model: VisionModel, batches: Any, importance: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """Accuracies by the number of heads pruned, for each metric, and the mean over random orders."""
    heads = [(layer, head) for layer in range(DEPTH) for head in range(HEADS)]
    curves = {
        name: pruning_curve(model, batches, sorted(heads, key=lambda place: float(values[place])))
        for name, values in importance.items()
    }
    orders = [random.Random(seed).sample(heads, len(heads)) for seed in range(DRAWS)]
    found = [pruning_curve(model, batches, order) for order in orders]
    return {**curves, "random": [statistics.mean(values) for values in zip(*found, strict=True)]}


def _reach(found: RecordedAttention) -> list[dict[str, Any]]:
    """Expected hops by layer, the share of the class token, and uniform attention for comparison."""
    hops, traffic = expected_hop(hop_profile(found.maps, found.grid)), token_traffic(found.maps, found.grid)
    rows = [
        {"layer": str(layer), "expected hop": float(each.mean()), "least": float(each.min()), "most": float(each.max()),
         "patch to class token": float(traffic.patch_to_token[layer].mean()),
         "class token to itself": float(traffic.token_to_token[layer].mean())}
        for layer, each in enumerate(hops)
    ]  # fmt: skip
    uniform, tokens = float(expected_hop(pair_counts(found.grid).double())), 1 + found.grid[0] * found.grid[1]
    return [*rows, {"layer": "uniform", "expected hop": uniform, "least": uniform, "most": uniform,
                    "patch to class token": 1 / tokens, "class token to itself": 1 / tokens}]  # fmt: skip


def _agreement(importance: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Spearman's correlation of each two metrics over the heads."""
    ranks = torch.stack([values.flatten().argsort().argsort().double() for values in importance.values()])
    table = torch.corrcoef(ranks).tolist()
    return [
        {"metric": name, **dict(zip(importance, row, strict=True))} for name, row in zip(importance, table, strict=True)
    ]


def _clusters(patterns: Patterns, found: RecordedAttention) -> list[dict[str, Any]]:
    """Size, commonest label of the maps, and share of each layer."""
    labels = [
        pattern_label(found.maps[layer][image, head], found.grid) for image, layer, head in patterns.items.tolist()
    ]
    rows = []
    for cluster in range(len(patterns.prototypes)):
        members = (patterns.clusters == cluster).nonzero()[:, 0].tolist()
        counts, layers = Counter(labels[n] for n in members), patterns.items[members, 1]
        shares = {f"layer {n} %": 100 * float((layers == n).double().mean()) if members else 0.0 for n in range(DEPTH)}
        common = max(LABELS, key=lambda label: counts[label])
        rows.append({"cluster": cluster, "maps": len(members), "pattern": common, **shares})
    return rows


def _draw_heads(curves: dict[str, list[float]], found: RecordedAttention, settings: Settings) -> None:
    """Accuracy by heads pruned, and the hop profile of each layer with that of uniform attention."""
    figure = new_figure(9.5, 3.6)
    left, right = figure.subplots(1, 2)
    for name, curve in curves.items():
        style = {"color": "black", "linestyle": "--"} if name == "random" else {}
        left.plot(range(len(curve)), [100 * value for value in curve], label=name.replace("_", " "), lw=1.3, **style)
    left.set(xlabel="heads pruned, the least important first", ylabel="accuracy, %", ylim=(0, 102))
    left.legend(frameon=False, fontsize=7)
    profile = hop_profile(found.maps, found.grid, renormalise=True).mean(1)
    for layer, values in enumerate(profile):
        right.plot(values.tolist(), marker="o", ms=3, label=f"layer {layer}, mean over heads")
    counts = pair_counts(found.grid).double()
    right.plot((counts / counts.sum()).tolist(), "k--", label="uniform attention")
    right.set(xlabel="hops between patches", ylabel="share of attention (mass)")
    right.legend(frameon=False, fontsize=7)
    save_figure(figure, settings.folder / PICTURES[0])


def _draw_patterns(patterns: Patterns, found: RecordedAttention, clusters: list[dict[str, Any]], path: Path) -> None:
    """The mean map of each cluster above its most central map, and the layout of all maps, clusters numbered."""
    count, (items, _) = len(clusters), pattern_items(found.maps, found.prefix)
    figure = new_figure(1.3 * count, 6.6)
    above, below = figure.subfigures(2, 1, height_ratios=(1.4, 1))
    panels = above.subplots(2, count, squeeze=False)
    for row, (mean, item) in zip(clusters, panels.T, strict=True):
        mean.imshow(patterns.prototypes[row["cluster"]].numpy(), cmap="magma")
        layer = max(range(DEPTH), key=lambda n: row[f"layer {n} %"])
        text = f"{row['cluster']}: {row['pattern']}\n{row['maps']} maps\nmost of layer {layer}"
        mean.set_title(text, fontsize=7, color=f"C{row['cluster']}")
        for central in patterns.central[row["cluster"]][:1]:
            item.imshow(items[central, 0].numpy(), cmap="magma")
            image, layer, head = patterns.items[central].tolist()
            item.set_title(f"image {image}, layer {layer}, head {head}", fontsize=5.5)
        for axes in (mean, item):
            axes.set(xticks=[], yticks=[])
    panels[0, 0].set_ylabel("mean map: from patch", fontsize=7)
    panels[1, 0].set_ylabel("most central map", fontsize=7)
    panels[1, 0].set_xlabel("to patch", fontsize=7)
    layout = below.subplots()
    number = {"fontsize": 11, "weight": "bold", "ha": "center", "va": "center"}
    for row in clusters:
        x, y = patterns.coordinates[patterns.clusters == row["cluster"]].T.tolist()
        if x:
            layout.scatter(x, y, s=6, color=f"C{row['cluster']}")
            middle = (statistics.mean(x), statistics.mean(y))
            layout.annotate(str(row["cluster"]), middle, bbox={"fc": "white", "ec": "none", "alpha": 0.7}, **number)
    layout.set_title("all maps, first two principal components of the codes", fontsize=8, loc="left")
    layout.set(xticks=[], yticks=[])
    save_figure(figure, path)
