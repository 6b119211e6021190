"""A small vision transformer with pooled tokens, with diverse attention, with both and with neither."""

import statistics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.data import Batch
from mereo.inference.evaluate import normalise
from mereo.inference.mode import evaluating
from mereo.measure.attacks.attack import attack
from mereo.measure.corruptions import CORRUPTIONS, Corruption
from mereo.pictures import new_figure, save_figure
from mereo.tasks.classification import Classification
from mereo.training.config import TrainConfig
from mereo.training.regularisers import regularise
from papers.common.fitting import fit
from papers.common.measures import means
from papers.common.settings import Settings

SIZE, PATCH, DIM, DEPTH, HEADS = 28, 4, 48, 2, 4
EPOCHS, BATCH, LIMIT, TESTED, RATE = 6, 32, 1000, 150, 4e-3
EPSILON, STEPS, QUERIES, ATTACKED = 0.02, 10, 50, 40
TOP = 0.1
"""Share of the keys whose share of the attention is measured."""
VARIANTS = {"base": (False, False), "TAP": (True, False), "ADL": (False, True), "TAP and ADL": (True, True)}
"""Whether tokens are pooled, and whether attention is diversified, by name."""
PICTURE = "corruptions.png"


def fade(images: Tensor, share: float, draws: Tensor) -> Tensor:
    """Less contrast: each pixel moves by that share to the mean of its image."""
    return images + share * (images.mean((1, 2, 3), keepdim=True) - images)


def pixelate(images: Tensor, side: float, draws: Tensor) -> Tensor:
    """Means over squares of that side in place of pixels; the last squares may be narrower."""
    size = int(side)
    height, width = images.shape[-2:]
    means = F.avg_pool2d(images, size, ceil_mode=True, count_include_pad=False)
    return means.repeat_interleave(size, -2).repeat_interleave(size, -1)[..., :height, :width]


CHOSEN = {
    "noise": CORRUPTIONS["noise"],
    "blur": CORRUPTIONS["blur"],
    "occlusion": Corruption("occlusion", "% of the side", (0, 10, 20, 30, 40, 50), 2, CORRUPTIONS["occlusion"].apply),
    "contrast": Corruption("contrast", "share of the contrast", (0, 0.3, 0.5, 0.7, 0.8, 0.9), 1, fade),
    "pixelation": Corruption("pixelation", "pixels", (0, 2, 3, 4, 5, 7), 1, pixelate),
}
"""Five corruptions, each with 0 and five severities."""


def make(name: str, channels: int, classes: int) -> Any:
    """The network of a variant."""
    model = mereo.create_model(
        "vit_tiny", num_classes=classes, in_chans=channels, img_size=SIZE, patch_size=PATCH, embed_dim=DIM, depth=DEPTH,
        num_heads=HEADS,
    )  # fmt: skip
    model.pretrained_cfg |= {"mean": (0.3,) * channels, "std": (0.3,) * channels}
    return mereo.tap(model) if VARIANTS[name][0] else model


def attention_of(model: Any, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Scores of images in [0, 1], and the attention of each layer among patches: (batch, heads, patches, patches)."""
    cfg = model.pretrained_cfg
    with evaluating(model), mereo.record(model) as trace, torch.no_grad():
        scores = model(normalise(images, cfg["mean"], cfg["std"]))
    return scores, [trace[name][..., 1:, 1:] for name in trace if trace.kinds[name] == "couplings"]


def top_share(maps: list[Tensor]) -> float:
    """The share of attention that the tenth of keys with most of it receives, in percent: mean over layers, images."""
    shares = []
    for each in maps:
        received = each.mean((1, 2))
        received = received / received.sum(-1, keepdim=True)
        most = max(round(TOP * received.shape[-1]), 1)
        shares.append(received.topk(most, -1).values.sum(-1).mean())
    return 100 * torch.stack(shares).mean().item()


def measure(model: Any, test: Batch) -> dict[str, float]:
    """Figures of a trained network; accuracies under a corruption are means over its severities."""
    scores, clean = attention_of(model, test.images)
    curves, cosines = {}, []
    places = torch.arange(len(test.images))
    for name, corruption in CHOSEN.items():
        points = []
        for severity in corruption.severities[1:]:
            found, maps = attention_of(model, corruption(test.images, severity, places))
            points.append(100 * (found.argmax(1) == test.labels).double().mean().item())
            cosines += [F.cosine_similarity(*pair, dim=-1).mean().item() for pair in zip(clean, maps, strict=True)]
        curves[name] = points
    figures = {"clean %": 100 * (scores.argmax(1) == test.labels).double().mean().item()}
    figures |= {f"{name} %": statistics.mean(points) for name, points in curves.items()}
    figures |= {"cosine": statistics.mean(cosines), "top tenth %": top_share(clean)}
    images, labels = test.images[:ATTACKED], test.labels[:ATTACKED]
    for title, name, steps in (("APGD %", "apgd", STEPS), ("Square %", "square", QUERIES)):
        attacked = attention_of(model, attack(name, model, images, labels, EPSILON, steps=steps))[0]
        figures[title] = 100 * (attacked.argmax(1) == labels).double().mean().item()
    return figures


def run(settings: Settings) -> dict[str, Any]:
    """The figures of each variant, the means over seeds, drawn as bars."""
    splits = settings.splits(SIZE, LIMIT)
    images, classes = splits.train, len(splits.class_names)
    test = splits.test.batch(torch.arange(min(settings.images or TESTED, len(splits.test))))
    rows: list[dict[str, Any]] = []
    for name in settings.chosen(VARIANTS):
        _, diverse = VARIANTS[name]
        found = []
        for seed in range(settings.seeds):
            torch.manual_seed(seed)
            model = make(name, images.image_shape[0], classes)
            config = TrainConfig().replace(loss="cross_entropy", diversify_attention=diverse)
            objective = regularise(Classification().objective(model, config), config)
            cfg = model.pretrained_cfg

            def loss(batch: Batch, objective: Any = objective, cfg: Any = cfg) -> Tensor:
                total: Tensor = objective(batch._replace(images=normalise(batch.images, cfg["mean"], cfg["std"])))[0]
                return total

            fit(
                loss, model.parameters(), images, epochs=settings.epochs or EPOCHS,
                batch_size=settings.batch_size or BATCH, lr=RATE, device=torch.device("cpu"), title=name,
                say=lambda line: None, seed=seed,
            )  # fmt: skip
            figures = measure(model, test)
            found.append(figures)
            settings.say(f"{name}, seed {seed}: " + ", ".join(f"{key} {value:.3g}" for key, value in figures.items()))
        rows.append({"network": name} | means(found))
        spread = [each["clean %"] for each in found]
        rows[-1]["least clean %"], rows[-1]["most clean %"] = min(spread), max(spread)
    _draw(rows, settings)
    size = f"{len(images):,} images of {settings.data}, {settings.seeds} seeds"
    return {"tables": {size: rows}, "notes": [], "pictures": [PICTURE], "data": str(settings.data)}


def _draw(rows: list[dict[str, Any]], settings: Settings) -> None:
    """Accuracy on clean, corrupted and attacked images as bars, a colour for each network."""
    figure = new_figure(7.6, 3.2)
    axes = figure.subplots()
    names = ["clean", *CHOSEN, "APGD", "Square"]
    for number, row in enumerate(rows):
        places = [place + 0.2 * (number - (len(rows) - 1) / 2) for place in range(len(names))]
        axes.bar(places, [row[f"{name} %"] for name in names], 0.18, label=row["network"])
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylabel("accuracy, %")
    axes.grid(alpha=0.3, axis="y")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    save_figure(figure, settings.folder / PICTURE)
