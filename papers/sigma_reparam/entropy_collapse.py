"""A vision transformer without norms, trained by plain SGD: with sigma-reparametrisation, and without.

Both networks compute the same at first: the plain one is the converted one after `mereo.fold`. No momentum, warm-up,
weight decay or clipping.
"""

import math
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.data.images import Images
from mereo.errors import UsageError
from mereo.measure.attention_entropy import attention_entropy
from mereo.pictures import new_figure, save_figure
from mereo.training.step import descend
from papers.common.measures import span
from papers.common.settings import Settings

WIDTH, HEADS, PATCH, SIZE = 64, 4, 7, 28
BATCH, LIMIT, TESTED = 64, 20_000, 200
STEPS, EVERY = 400, 5
"""Steps of a training, and steps between two looks at accuracy and entropy."""
RATE, DEPTHS = 0.1, (24,)
NAMES = ("converted", "not converted")
PICTURE = "entropy.png"


class Look(NamedTuple):
    """What a network does after some steps.

    Attributes:
        step: steps so far.
        loss, accuracy: on test images; the loss is infinite after the training diverged.
        entropies: nats, the mean of each layer over heads, images and queries.
    """

    step: int
    loss: float
    accuracy: float
    entropies: list[float]


def make(name: str, depth: int, channels: int, classes: int, seed: int) -> nn.Module:
    """A network without norms whose weights all have the spectral norm 1."""
    torch.manual_seed(seed)
    plain = mereo.create_model(
        "vit_tiny", num_classes=classes, in_chans=channels, img_size=SIZE, patch_size=PATCH, embed_dim=WIDTH,
        depth=depth, num_heads=HEADS,
    )  # fmt: skip
    converted = mereo.sigma_reparam(plain, gamma="one", norms=False)
    return converted if name == "converted" else mereo.fold(converted)


def standardised(images: Tensor) -> Tensor:
    """Images whose pixels have the mean 0 and the deviation 1 over all images."""
    return (images - images.mean()) / images.std().clamp(min=1e-6)


@torch.inference_mode()
def look(model: nn.Module, test: Images, step: int) -> Look:
    """Loss, accuracy and entropies on the test images."""
    model.eval()
    batch = test.batch(torch.arange(len(test)))
    with mereo.record(model) as trace:
        scores = model(standardised(batch.images))
    model.train()
    loss, right = F.cross_entropy(scores, batch.labels).item(), (scores.argmax(1) == batch.labels).double().mean()
    found = [attention_entropy(trace[name]).mean().item() for name in trace]
    return Look(step, loss if math.isfinite(loss) else math.inf, right.item(), found)


def train(name: str, depth: int, seed: int, splits: tuple[Images, Images, int], settings: Settings) -> list[Look]:
    """The looks at a network during its training, which ends early if the loss is no longer finite."""
    images, test, classes = splits
    model = make(name, depth, images.image_shape[0], classes, seed).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    draws, looks = torch.Generator().manual_seed(seed), [look(model, test, 0)]
    for step in range(1, STEPS + 1):
        batch = images.batch(torch.randint(len(images), (settings.batch_size or BATCH,), generator=draws))
        loss = F.cross_entropy(model(standardised(batch.images)), batch.labels)
        if not math.isfinite(loss.item()):
            settings.say(f"{name}, {depth} layers, seed {seed}: not finite at step {step}")
            looks.append(look(model, test, step)._replace(loss=math.inf))
            break
        descend(optimizer, RATE, loss)
        if step % EVERY == 0:
            looks.append(look(model, test, step))
            now = looks[-1]
            settings.say(
                f"{name}, {depth} layers, seed {seed}: step {step}, loss {now.loss:.3f},"
                f" accuracy {now.accuracy:.3f}, least entropy {min(now.entropies):.3f}"
            )
    return looks


def run(settings: Settings) -> dict[str, Any]:
    """Accuracy and entropies of both networks at each depth, and the entropies drawn over the steps."""
    if unknown := [text for text in settings.variants if not text.isdigit() or not int(text)]:
        raise UsageError(f"variants is {unknown[0]!r}; it must be a number of layers, such as 6.")
    depths = [int(text) for text in settings.variants] or list(DEPTHS)
    splits = settings.splits(SIZE, LIMIT, validation_fraction=0.1)
    count = min(settings.images or TESTED, len(splits.test))
    data = splits.train, splits.test.subset(torch.arange(count)), len(splits.class_names)
    runs: dict[tuple[int, str], list[list[Look]]] = {}
    for depth in depths:
        for name in NAMES:
            runs[depth, name] = [train(name, depth, seed, data, settings) for seed in range(settings.seeds)]
    rows = []
    for (depth, name), found in runs.items():
        lasts = [looks[-1] for looks in found]
        rows.append(
            {
                "network": name,
                "layers": depth,
                **span("accuracy %", [100 * last.accuracy for last in lasts]),
                "diverged": sum(math.isinf(last.loss) for last in lasts),
                "entropy, first": _mean(value for looks in found for value in looks[0].entropies),
                "entropy, last": _mean(value for last in lasts for value in last.entropies),
                "least of a layer": min(
                    v for looks in found for each in looks for v in each.entropies if math.isfinite(v)
                ),
            }
        )
    _draw(runs, settings)
    tokens = (SIZE // PATCH) ** 2 + 1
    return {
        "tables": {f"{settings.data}, {STEPS} steps of plain SGD at {RATE}, {settings.seeds} seeds": rows},
        "notes": [f"Layers of {WIDTH}, no norms. The entropy of uniform attention is {math.log(tokens):.2f}."],
        "pictures": [PICTURE],
        "data": str(settings.data),
    }


def _mean(values: Iterable[float]) -> float | None:
    """The mean of the values that are numbers; attention of a network that diverged may have none."""
    numbers = [value for value in values if math.isfinite(value)]
    return statistics.mean(numbers) if numbers else None


def _draw(runs: dict[tuple[int, str], list[list[Look]]], settings: Settings) -> None:
    """The entropy of each layer over the steps, a panel for each network and depth, all seeds."""
    from matplotlib import colormaps

    figure = new_figure(3.2 * len(runs), 3.0)
    panels = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
    for axes, ((depth, name), found) in zip(panels, runs.items(), strict=True):
        for number, looks in enumerate(found):
            layers = len(looks[0].entropies)
            for layer, colour in enumerate(colormaps["viridis"](torch.linspace(0, 0.9, layers).numpy())):
                axes.plot(
                    [each.step for each in looks], [each.entropies[layer] for each in looks], color=colour, alpha=0.8,
                    label=f"layer {layer + 1}" if number == 0 and layer in (0, layers - 1) else None,
                )  # fmt: skip
        axes.set_title(f"{name}, {depth} layers", fontsize=9, loc="left")
        axes.set(xlabel="steps", ylim=(0, None))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("entropy of attention, nats")
    panels[-1].legend(frameon=False, fontsize=7)
    save_figure(figure, settings.folder / PICTURE)
