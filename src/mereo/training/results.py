"""The result of a finished run, its figures and the closing table."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mereo.data import Images
from mereo.inference.evaluate import Scores, prepare_batch
from mereo.models import VisionModel
from mereo.runtime.printing import say
from mereo.runtime.text import duration, rounded
from mereo.tasks import Classification, Task
from mereo.training.run_folder import RunFolder

if TYPE_CHECKING:
    from mereo.training.engine import Trainer


@dataclass(frozen=True)
class RunResult:
    """The result of a finished run.

    Attributes:
        folder: with its files.
        test_best: scores of the weights of the best epoch.
        test_last: scores of the weights of the last epoch.
        results: the content of results.json.
        model: the network with the weights of the best epoch, on the device, in eval mode.
        main: whether this is the first process, the one that reports.
        task: what was trained.
        note: a line about a training that still improved at its end; None for any other.
    """

    folder: RunFolder
    test_best: Scores
    test_last: Scores
    results: dict[str, Any]
    model: VisionModel
    main: bool = True
    task: Task = field(default_factory=Classification)
    note: str | None = None


def run_results(trainer: "Trainer", test_best: Scores, test_last: Scores) -> dict[str, Any]:
    """The content of results.json."""
    rates = [row["images_per_second"] for row in trainer.history]
    splits, config = trainer.splits, trainer.config
    chosen_on = "test" if config.paper_protocol else "validation" if splits.validation else "last epoch"
    return {
        "model": config.model,
        "data": config.data,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "best_epoch": trainer.best["epoch"] if trainer.best else None,
        "chosen_on": chosen_on,
        "test_best": test_best.to_dict(),
        "test_last": test_last.to_dict(),
        "train_images": len(splits.train),
        "skipped_images": splits.skipped,
        "images_per_second": sorted(rates)[len(rates) // 2],
        "loading_share": sum(row["loading_share"] for row in trainer.history) / len(trainer.history),
        "seconds": round(trainer.seconds, 1),
        "device": str(trainer.device),
        "torch": torch.__version__,
    }


def describe_calibration(figures: dict[str, Any]) -> str:
    """How well the probabilities of a run agree with its accuracy, on one line."""
    tested = "test_" if figures["test_images"] else ""
    before, after = figures[f"{tested}ece_before"], figures[f"{tested}ece_after"]
    return (
        f"calibration error {100 * after:.1f} % on {'test' if tested else 'validation'} images ({100 * before:.1f} %"
        f" before calibration; temperature {figures['temperature']:.3g}, from {figures['images']:,} validation images)"
    )


def summary(result: RunResult, picture: Path | None = None) -> None:
    """Print the table at the end of a run: test figures, size, speed and the paths of all files."""
    rows = summary_rows(result)
    if picture is not None:
        rows.append(("explanation", str(picture)))
    width = max(len(name) for name, _ in rows)
    say()
    for name, value in rows:
        say(f"{name:<{width}}  {value}")
    if result.note is not None:
        say(f"\n{result.note}")


def summary_rows(result: RunResult) -> list[tuple[str, str]]:
    """The table of a finished run as names and values."""
    r, task = result.results, result.task
    chosen = {"validation": "best on validation", "test": "best on TEST images, as in the papers"}
    rows = task.summary(r["test_best"], f"{chosen.get(r['chosen_on'], 'last epoch')}, epoch {r['best_epoch']}")
    if r["chosen_on"] != "last epoch":
        rows.insert(1, ("at the last epoch", task.show(r["test_last"][task.chooses[0]])))
    if "calibration" in r:
        rows.append(("probabilities", describe_calibration(r["calibration"])))
    rows += [
        ("parameters", f"{r['parameters']:,}"),
        ("training", f"{duration(r['seconds'])} on {r['device']}, {rounded(r['images_per_second'])} {task.unit}/s"),
        ("weights", str(result.folder.best)),
        ("run folder", str(result.folder.path)),
    ]
    return rows


def draw_training_samples(trainer: "Trainer") -> None:
    """Up to 32 images of the first batch, as they are trained on."""
    batch = trainer.batch(0, 0, trainer.sampler(0), 0)
    trainer.task.check(prepare_batch(batch, trainer.cfg))
    shown = tree_map_only(Tensor, lambda field: field[:32], batch)
    trainer.task.draw_samples(shown, trainer.folder.train_samples)


@torch.inference_mode()
def draw_test_samples(task: Task, model: VisionModel, test: Images, device: torch.device, path: Path) -> None:
    """Up to 32 test images, evenly spaced, with what is predicted for them."""
    count = min(32, len(test))
    crop = (model.image_shape[1], model.image_shape[2]) if model.input_kind == "images" else None
    batch = test.batch(torch.arange(count) * (len(test) // count), crop=crop, device=device)
    task.draw(model.eval(), batch, prepare_batch(batch, model.pretrained_cfg), path)
