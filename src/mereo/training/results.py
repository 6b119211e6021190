"""What a finished run gives, and how its figures are told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mereo.data import Images
from mereo.inference.evaluate import Scores, found, normalise
from mereo.models import CapsuleClassifier
from mereo.runtime.text import duration, percent
from mereo.training.pictures import draw_images
from mereo.training.run_folder import RunFolder


@dataclass(frozen=True)
class RunResult:
    """What a finished run gives.

    Attributes:
        folder: where everything lies.
        test_best: scores of the weights of the best epoch.
        test_last: scores of the weights of the last epoch.
        results: what stands in results.json.
        model: the network with the weights of the best epoch, on the device, in eval mode.
        main: whether this is the first process, the one that reports.
    """

    folder: RunFolder
    test_best: Scores
    test_last: Scores
    results: dict[str, Any]
    model: CapsuleClassifier
    main: bool = True


def summary(result: RunResult, picture: Path | None = None) -> None:
    """Print the table at the end of a run: accuracy, size, speed, and where everything lies."""
    r = result.results
    last, best = r["test_last"], r["test_best"]
    interval = f"95 % interval {percent(best['accuracy_low'])} to {percent(best['accuracy_high'])}"
    chosen = {"validation": "best on validation", "test": "best on TEST, the papers' protocol"}
    what = chosen.get(r["chosen_on"], "last epoch")
    rows = [("test accuracy", f"{percent(best['accuracy'])} ({what}, epoch {r['best_epoch']}; {interval})")]
    if r["chosen_on"] != "last epoch":
        rows.append(("at the last epoch", percent(last["accuracy"])))
    if "mean_hits" in best:
        share, any_found = percent(best["mean_hits"]), percent(best["any_hit"])
        rows.append(("objects found", f"{share} of all, at least one in {any_found} of the images"))
    rows += [
        ("parameters", f"{r['parameters']:,}"),
        ("training", f"{duration(r['seconds'])} on {r['device']}, {r['images_per_second']:,.0f} images/s"),
        ("weights", str(result.folder.best)),
        ("run folder", str(result.folder.path)),
    ]
    if picture is not None:
        rows.append(("what it saw", str(picture)))
    width = max(len(name) for name, _ in rows)
    print()
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _listed(names: Sequence[str], classes: Sequence[int]) -> str:
    return ", ".join(names[c] for c in classes)


@torch.inference_mode()
def draw_test_samples(model: CapsuleClassifier, test: Images, device: torch.device, path: Path) -> None:
    """Test images with what the model says of them, wrong answers in red with the truth, and what it rebuilds."""
    count = min(32, len(test))
    cfg, names = model.pretrained_cfg, test.class_names
    batch = test.batch(
        torch.arange(count) * (len(test) // count), crop=(model.image_shape[1], model.image_shape[2]), device=device
    )
    capsules = model.eval().capsules(normalise(batch.images, cfg["mean"], cfg["std"]))
    true = batch.labels.reshape(count, -1)
    said = capsules.activation.topk(true.shape[1], 1).indices
    wrong = (~found(capsules.activation, batch.labels).all(1)).tolist()
    titles = [
        f"said {_listed(names, answer)},\nis {_listed(names, truth)}" if failed else _listed(names, answer)
        for answer, truth, failed in zip(said.tolist(), true.tolist(), wrong, strict=True)
    ]
    images = batch.images
    if model.decoder is not None:
        # Each row of images above the row of what the decoder makes of their longest capsule.
        rebuilt = model.reconstruct(capsules).to(images)
        pairs = list(zip(images.split(8), rebuilt.split(8), strict=True))
        images = torch.cat([part for pair in pairs for part in pair])
        rows = [titles[i : i + 8] for i in range(0, count, 8)]
        titles = [title for row in rows for title in (*row, *["rebuilt"] * len(row))]
        flags = [wrong[i : i + 8] for i in range(0, count, 8)]
        wrong = [flag for row in flags for flag in (*row, *[False] * len(row))]
    draw_images(images, titles, path, wrong=wrong)
