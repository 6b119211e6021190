"""Sprites under each of their attributes: conditional cross-attention beside networks that condition less, or not."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import mereo
from mereo.core import record
from mereo.core.initialise import xavier_linears
from mereo.data import Batch, load_splits
from mereo.data.images import Images
from mereo.pictures import new_figure, save_figure
from mereo.tasks import AttributeEmbedding
from mereo.tasks.embedding import nearest
from mereo.training.config import TrainConfig
from papers.common.fitting import follow
from papers.common.measures import means
from papers.common.settings import Settings

SIZE, DIM, STEPS, BATCH, RATE = 32, 32, 200, 48, 2e-3
NEAREST, ATTENTION = "nearest.png", "attention.png"
GALLERY, SHOWN, QUERIES, MAPS = 40, 6, 2, 4
"""Images, nearest ones and queries in the first picture, and images in the second.

Among many images the nearest ones share every attribute, whatever the condition."""


class Unconditional(nn.Module):
    """One vision transformer; each attribute has the same vector, or its own mask of it, relu(M_c) * e.

    Shapes: (batch, 3, 32, 32) -> (batch, attributes, DIM).
    """

    def __init__(self, attributes: int, masks: bool = False) -> None:
        super().__init__()
        self.model = mereo.create_model(
            "vit_tiny", num_classes=DIM, img_size=SIZE, patch_size=4, embed_dim=64, depth=4, num_heads=4
        )
        xavier_linears(self.model)  # as the networks beside it start
        start = 0.9 + 0.7 * torch.randn(attributes, DIM)  # as in arXiv:1603.07810
        self.masks = nn.Parameter(start) if masks else None
        self.attributes = attributes

    def forward(self, images: Tensor) -> Tensor:
        vectors = self.model(images).unsqueeze(1)
        return vectors.expand(-1, self.attributes, -1) if self.masks is None else vectors * self.masks.relu()


class Separate(nn.Module):
    """A vision transformer for each attribute. Shapes: as for `Unconditional`."""

    def __init__(self, attributes: int) -> None:
        super().__init__()
        self.models = nn.ModuleList(Unconditional(1) for _ in range(attributes))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([model(images) for model in self.models], 1)


def _cca(**arguments: Any) -> Callable[[int], nn.Module]:
    return lambda attributes: mereo.create_model("cca_tiny", num_classes=attributes, **arguments)


VARIANTS: Mapping[str, Callable[[int], nn.Module]] = {
    "condition": _cca(),
    "cls": _cca(residual="cls"),
    "none": _cca(residual="none"),
    "mask": _cca(condition="mask"),
    "unconditional": Unconditional,
    "masked vector": lambda attributes: Unconditional(attributes, masks=True),
    "separate": Separate,
}
"""Conditional cross-attention with each residual and with masks in place of the lookup, and the networks beside it."""


def standardised(images: Tensor) -> Tensor:
    """Pixels in [-1, 1]."""
    return 2 * images - 1


def train(model: nn.Module, task: AttributeEmbedding, images: Images, size: int, seed: int) -> None:
    """Triplets of each attribute in every batch."""
    objective, draws = task.objective(model, TrainConfig()), torch.Generator().manual_seed(seed)
    schedule = OneCycleLR(torch.optim.AdamW(model.parameters(), RATE), RATE, total_steps=STEPS)
    model.train()
    for _ in range(STEPS):
        batch = images.batch(torch.randint(len(images), (size,), generator=draws))
        loss, _ = objective(batch._replace(images=standardised(batch.images)))
        follow(schedule, loss)
    model.eval()


@torch.inference_mode()
def embed(model: nn.Module, images: Tensor) -> Tensor:
    """(images, attributes, dim), of length one."""
    return torch.cat([F.normalize(model(standardised(part)), dim=-1) for part in images.split(100)])


def _rows(runs: Mapping[str, Sequence[Mapping[str, float]]], names: Sequence[str], kind: str) -> list[dict[str, Any]]:
    """A row for each network and condition, the mean over the seeds of each attribute."""
    return [
        {
            "network, under": f"{name}, {under}",
            **{of: statistics.mean(run[f"{kind} {of} under {under}"] for run in each) for of in names},
        }
        for name, each in runs.items()
        for under in names
    ]


def _summary(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """The means over attributes and seeds; the least own and the largest other accuracy of any seed."""
    rows = []
    for name, each in runs.items():
        mean = means(each)
        figures = {
            "own": mean["triplet_accuracy"], "other": mean["other_triplet_accuracy"],
            "own mAP": mean["mean_average_precision"], "least own": min(run["least"] for run in each),
            "largest other": max(run["most"] for run in each),
        }  # fmt: skip
        rows.append({"network": name, **figures, "parameters": int(each[0]["parameters"]), "seconds": mean["seconds"]})
    return rows


def run(settings: Settings) -> dict[str, Any]:
    """Tables of accuracies of triplets and average precisions, and pictures of the first network."""
    splits = load_splits("sprites", img_size=SIZE, limit=settings.limit)
    names, task = splits.class_names, AttributeEmbedding(splits.class_names)
    test = splits.test.batch(torch.arange(min(settings.images or 400, len(splits.test))))
    runs: dict[str, list[dict[str, float]]] = {}
    shown: tuple[str, nn.Module] | None = None
    for seed in range(settings.seeds):
        for name in settings.chosen(VARIANTS):
            torch.manual_seed(seed)
            model, began = VARIANTS[name](len(names)), time.process_time()
            train(model, task, splits.train, settings.batch_size or BATCH, seed)
            seconds, metrics = time.process_time() - began, task.metrics()
            metrics.update(embed(model, test.images), test)
            figures = metrics.compute()
            each = {(of, under): figures[f"triplet_accuracy {of} under {under}"] for of in names for under in names}
            figures |= {
                "least": min(value for (of, under), value in each.items() if of == under),
                "most": max(value for (of, under), value in each.items() if of != under),
                "seconds": seconds, "parameters": sum(p.numel() for p in model.parameters()),
            }  # fmt: skip
            runs.setdefault(name, []).append(figures)
            shown = shown or (name, model)
            settings.say(
                f"seed {seed}, {name}: own {figures['triplet_accuracy']:.2f} (least {figures['least']:.2f}), other"
                f" {figures['other_triplet_accuracy']:.2f} (most {figures['most']:.2f}), {seconds:.0f} s"
            )
    pictures = [NEAREST]
    assert shown is not None
    few = test.pick(slice(0, GALLERY))
    _draw_nearest(embed(shown[1], few.images), few, names, settings)
    if hasattr(shown[1], "tokens"):
        _draw_attention(shown[1], few.images[:: len(few.images) // MAPS][:MAPS], names, settings)
        pictures.append(ATTENTION)
    return {
        "tables": {
            f"sprites, {STEPS} steps, {settings.seeds} seeds": _summary(runs),
            "accuracy of triplets": _rows(runs, names, "triplet_accuracy"),
            "average precision": _rows(runs, names, "average_precision"),
        },
        "notes": [
            f"Batches of {settings.batch_size or BATCH}, triplets of all attributes with a margin of 0.2, AdamW at"
            f" {RATE:g} in one cycle. Own: attribute c under condition c, other: under another condition, where 0.5 is"
            f" chance. Seconds are of a processor. Pictures: {shown[0]}, seed 0.",
        ],
        "pictures": pictures,
        "runs": runs,
    }


def _draw_nearest(vectors: Tensor, test: Batch, names: Sequence[str], settings: Settings) -> None:
    """The nearest images of some queries, a row for each condition; red frames where its attribute differs."""
    figure = new_figure(1.1 * (SHOWN + 1), 1.1 * QUERIES * len(names))
    panels = figure.subplots(QUERIES * len(names), SHOWN + 1, squeeze=False)
    assert test.attributes is not None
    for row, axes in enumerate(panels):
        number, query = row % len(names), row // len(names) * (len(vectors) // QUERIES)
        count = min(SHOWN, len(vectors) - 1)
        found = nearest(vectors[:, number], torch.tensor([query]), count)[0][0].tolist()
        for place, (each, image) in enumerate(zip(axes, [query, *found], strict=False)):
            each.imshow(test.images[image].permute(1, 2, 0).numpy())
            right = bool(test.attributes[image, number] == test.attributes[query, number])
            for side in each.spines.values():
                side.set(color="black" if right else "crimson", linewidth=0.8 if right else 2.5)
            each.set_ylabel(names[number] if place == 0 else "", fontsize=9)
            each.set_title("query" if place == 0 and number == 0 else "", fontsize=9)
        for each in axes:
            each.set(xticks=[], yticks=[])
    save_figure(figure, settings.folder / NEAREST)


@torch.inference_mode()
def _draw_attention(model: Any, images: Tensor, names: Sequence[str], settings: Settings) -> None:
    """Where each condition looks: the mean over the heads of its attention to the patches."""
    with record(model) as trace:
        model(standardised(images))
    maps = trace[f"blocks.{len(model.blocks) - 1}.attn.coupling"].mean(1)[:, :, 1:].unflatten(2, model.grid)
    figure = new_figure(1.3 * (len(names) + 1), 1.3 * len(images))
    panels = figure.subplots(len(images), len(names) + 1, squeeze=False)
    for row, (axes, image, own) in enumerate(zip(panels, images, maps, strict=True)):
        axes[0].imshow(image.permute(1, 2, 0).numpy())
        for each, name, values in zip(axes[1:], names, own, strict=True):
            each.imshow(values.numpy(), cmap="magma", vmin=0)
            each.set_title(name if row == 0 else "", fontsize=9)
        for each in axes:
            each.set(xticks=[], yticks=[])
    save_figure(figure, settings.folder / ATTENTION)
