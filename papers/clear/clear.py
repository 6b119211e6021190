"""How close does a diffusion transformer stay to the original when its attention is restricted to circles?

A small transformer with full attention over text and image tokens learns to generate digits by flow matching. Copies of
it whose image tokens attend to text and a circle of image tokens learn from it for a short time: by the velocity of the
data, by the teacher's velocity and by the outputs of its attention layers.
"""

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch
from mereo.surgery import linearise
from mereo.training.distil import distil
from mereo.training.matching import Match
from papers.clear.flow_transformer import FlowTransformer, noised, sampled
from papers.common.fitting import fit
from papers.common.pictures import draw_rows
from papers.common.settings import Settings

SIZE, BATCH, IMAGES, TESTED, RATE = 16, 16, 1024, 256, 1e-3
"""Side of the images, images of a step, training images, test images, and the learning rate."""
EPOCHS, DISTILLED = 12, 6
"""Epochs of the teacher, and of each student."""
VARIANTS: dict[str, dict[str, Any]] = {
    "2": {"radius": 2}, "3": {"radius": 3}, "4": {"radius": 4}, "2, blocks of 4": {"radius": 2, "down_factor": 4},
}  # fmt: skip
TRAINED = ("*.query.*", "*.key.*", "*.value.*", "*.proj.*", "*.down_weight")
PICTURE = "clear.png"


def _prepare(samples: Any, draws: torch.Generator) -> tuple[tuple[Any, ...], Any]:
    """Images at a random time on the way to noise: inputs of the networks, and the velocity."""
    images, labels = samples
    noise = torch.randn(images.shape, generator=draws).to(images)
    at = torch.rand(len(images), generator=draws).to(images)
    x, target = noised(images, noise, at)
    return (x, at, labels), target


def _attention(model: nn.Module, x: Tensor, at: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The velocity, and the outputs of all attention layers."""
    outputs: list[Tensor] = []
    hooks = [
        block.attn.register_forward_hook(lambda module, inputs, out: outputs.append(out))
        for block in model.blocks  # type: ignore[union-attr]
    ]
    try:
        return model(x, at, labels), outputs
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def losses(student: nn.Module, teacher: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """The three terms on test images, at times and with noise that are always the same."""
    teacher.eval(), student.eval()
    (x, at, classes), target = _prepare((images, labels), torch.Generator().manual_seed(0))
    sums = torch.zeros(4)
    for part in torch.arange(len(x)).split(64):
        v, mine = _attention(student, x[part], at[part], classes[part])
        expected, theirs = _attention(teacher, x[part], at[part], classes[part])
        attn = sum(F.mse_loss(a, b) for a, b in zip(mine, theirs, strict=True)) / len(mine)
        terms = (F.mse_loss(v, target[part]), F.mse_loss(v, expected), attn, expected.square().mean())
        sums += len(part) / len(x) * torch.stack([torch.as_tensor(term).cpu() for term in terms])
    return dict(zip(("L_fm", "L_pred", "L_attn", "teacher"), sums.tolist(), strict=True))


def _teacher(settings: Settings, images: Any, classes: int, device: torch.device) -> FlowTransformer:
    torch.manual_seed(0)
    model = FlowTransformer(images.image_shape, classes).to(device)
    draws = torch.Generator().manual_seed(0)

    def loss(batch: Batch) -> Tensor:
        inputs, target = _prepare((2 * batch.images - 1, batch.labels), draws)
        return F.mse_loss(model(*inputs), target)

    fit(
        loss, model.parameters(), images, epochs=settings.epochs or EPOCHS, batch_size=settings.batch_size or BATCH,
        lr=2 * RATE, device=device, title="teacher", say=settings.say,
    )  # fmt: skip
    return model


def run(settings: Settings) -> dict[str, Any]:
    """A table of pairs and losses, and samples."""
    device = settings.chosen_device()
    splits = settings.splits(SIZE, IMAGES)
    train, test = (split.batch(torch.arange(len(split))) for split in (splits.train, splits.test))
    assert train.images is not None and test.images is not None and train.labels is not None
    assert test.labels is not None
    images, labels = (2 * train.images - 1).to(device), train.labels.to(device)
    tested = settings.images or TESTED
    held, their = (2 * test.images[:tested] - 1).to(device), test.labels[:tested].to(device)
    teacher = _teacher(settings, splits.train, len(splits.class_names), device)
    noise = torch.randn(10, *splits.train.image_shape, generator=torch.Generator().manual_seed(1)).to(device)
    wanted = torch.arange(10, device=device) % len(splits.class_names)
    pictures = {"full attention": sampled(teacher, noise, wanted)}
    whole = (teacher.num_prefix_tokens + SIZE * SIZE) ** 2
    full = losses(teacher, teacher, held, their)
    rows = [{"radius": "full", "pairs %": 100.0, "L_fm": full["L_fm"], **_empty()}]
    epochs = DISTILLED if settings.epochs is None else max(1, settings.epochs // 2)
    matches = [Match(weight=0.5), *(Match("layer", f"blocks.{i}.attn", weight=0.5 / 4) for i in range(4))]
    for name, options in VARIANTS.items():
        student = linearise(teacher, **options)
        before, began = losses(student, teacher, held, their), time.monotonic()
        distil(
            teacher, student, (images, labels), matches, task=F.mse_loss, prepare=_prepare, trained=_there(student),
            epochs=epochs, batch_size=settings.batch_size or BATCH, lr=RATE, progress=False,
        )  # fmt: skip
        after = losses(student, teacher, held, their)
        settings.say(
            f"radius {name}: L_pred {before['L_pred']:.4f} -> {after['L_pred']:.4f}, {time.monotonic() - began:.0f} s"
        )
        pairs = student.blocks[0].attn.topology.pairs  # type: ignore[union-attr,index]
        rows.append(
            {
                "radius": name, "pairs %": 100 * pairs / whole, "L_fm": after["L_fm"],
                "L_pred before": before["L_pred"], "L_pred": after["L_pred"],
                "of the teacher's velocity %": 100 * after["L_pred"] / full["teacher"],
                "L_attn before": before["L_attn"], "L_attn": after["L_attn"],
            }
        )  # fmt: skip
        pictures[f"radius {name}"] = sampled(student, noise, wanted)
    draw_rows({name: (x + 1) / 2 for name, x in pictures.items()}, 10, settings.folder / PICTURE, (0.8, 0.85), 1.8)
    steps = epochs * -(-len(images) // (settings.batch_size or BATCH))
    return {
        "tables": {f"{steps} steps of distillation on {len(images):,} images of {settings.data}": rows},
        "notes": [
            "L_fm: mean squared error of the velocity; L_pred: of the student's against the teacher's; L_attn: of the"
            f" outputs of their attention layers. On {len(held):,} test images. Before: with the teacher's weights.",
            "Trained are the projections of the attention and the weights of the blocks; everything else is frozen.",
        ],
        "pictures": [PICTURE],
    }


def _empty() -> dict[str, None]:
    names = ("L_pred before", "L_pred", "of the teacher's velocity %", "L_attn before", "L_attn")
    return dict.fromkeys(names)


def _there(student: nn.Module) -> list[str]:
    """Patterns of the trained parameters that the student has."""
    blocks = any(name.endswith("down_weight") for name, _ in student.named_parameters())
    return [pattern for pattern in TRAINED if blocks or pattern != "*.down_weight"]
