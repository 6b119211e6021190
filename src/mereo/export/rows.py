"""Compares several networks under one protocol: accuracy over several seeds, and cost.

The comparison is a study created from its arguments: its runs are in <output>/compare-<data>, and finished runs are
reused.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mereo.errors import check_positive
from mereo.inference.flops import forward_flops
from mereo.models import load
from mereo.runtime import printing
from mereo.runtime.device import choose_device
from mereo.runtime.text import duration
from mereo.tasks import Classification, get_task
from mereo.training.compare import comparison_folder, images_per_second, make_study
from mereo.training.compare_defaults import CompareDefaults
from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate
from mereo.training.measurement_cache import cached_measurement
from mereo.training.peak import peak_memory
from mereo.training.plain import choose_plain, is_plain
from mereo.training.plan import Plan
from mereo.training.run_folder import RunFolder
from mereo.training.studies import Study, finish_runs, make_plans, plan_runs

BATCH = 64
"""Images of a batch whose inference is timed."""


@dataclass(frozen=True)
class Row:
    """One network of a comparison.

    Attributes:
        model: as given on the command line.
        parameters: of the network, decoder included.
        macs: multiply-adds of one image forward.
        memory: bytes that a training step takes at its peak, measured or estimated.
        values: of the metric on the test images, one a seed.
        chosen_on: the data that chose the epoch of the weights.
        test_images: how many there are.
        train_rate: images a second in training, as the runs measured it, the median of the seeds.
        rate: images a second in inference, all networks timed in turn.
        seconds: of training, the mean of the seeds.
        task: whose metric was measured.
        run: folder of the run with the first seed.
        plain: whether it is a plain network.
        memory_measured: whether the memory was measured.
        at_chance: whether it was found to predict no better than chance.
    """

    model: str
    parameters: int
    macs: int
    memory: int
    values: tuple[float, ...]
    chosen_on: str
    test_images: int
    train_rate: float
    rate: float
    seconds: float
    task: str = Classification.name
    run: Path | None = None
    plain: bool = False
    memory_measured: bool = False
    at_chance: bool = False

    @property
    def metric(self) -> str:
        """The name of the measured metric: the one that the task chooses models by."""
        return get_task(self.task).chooses[0]

    @property
    def unit(self) -> str:
        """What the entries of the data are called."""
        return get_task(self.task).unit

    @property
    def value(self) -> float:
        """The mean of the seeds."""
        return statistics.mean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation of the seeds; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def scale(self) -> float:
        """The factor that multiplies values for display: shares are in percent."""
        return 100.0 if get_task(self.task).is_share else 1.0

    def shown(self, value: float) -> str:
        """A value of the metric as text."""
        return f"{100 * value:.2f}" if get_task(self.task).is_share else f"{value:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        several = "accuracies" if self.metric == "accuracy" else f"{self.metric}_by_seed"
        plain = {several if name == "values" else name: value for name, value in asdict(self).items()}
        plain["run"] = None if self.run is None else str(self.run)
        return {self.metric: self.value, "spread": self.spread, **plain, several: list(self.values)}


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The best first, by the metric of the task; networks that guess last."""
    sign = -1 if get_task(rows[0].task).chooses[1] == "max" else 1
    return sorted(rows, key=lambda row: (row.at_chance, sign * row.value))


def run_comparison(
    texts: Sequence[str],
    seeds: int,
    output: str,
    overrides: Mapping[str, Any],
    recipe: str | None = None,
    say: Callable[[str], None] = printing.say,
    plain: str = "none",
    family: bool = False,
    quiet: bool = False,
    insert: Sequence[str] = (),
) -> list[Row]:
    """Train unfinished networks, and return one row per network.

    Every network is built and its memory estimated before anything is trained, so that a wrong argument fails at once.

    Args:
        texts: networks and recipes, see `parse_variant`.
        overrides: fields of the configuration that are the same for all; `data` must be among them.
        plain: a plain baseline network, "auto" for one of about the same size, or "none".
        family: names mean networks even if a recipe has the same name. Because there are many, a step of each
            that is not finished is timed first, to print how long all trainings take; the memory of a step is measured.
        quiet: whether the trainings print nothing.
        insert: mechanisms that each network is compared with, see `make_study`.
    """
    check_positive(seeds=seeds)
    study = make_study(texts, recipe, recipes=not family, insert=insert)
    # Before anything is chosen, so that a wrong argument of any network is reported at once.
    plans = make_plans(plan_runs(study, "compare", seeds, output, overrides))
    info = next(iter(plans.values())).info
    defaults = CompareDefaults(overrides, comparison_folder(overrides["data"], output), info, say)
    study = defaults.apply(study)
    # The given time sets the number of epochs of the first network, which all take.
    overrides = {name: value for name, value in overrides.items() if name != "minutes"}
    plans = make_plans(plan_runs(study, "compare", seeds, output, overrides), info)
    chosen = choose_plain([plans[label, 0] for label in study.variants], list(study.variants), plain)
    if chosen is not None:
        baseline = Study("", "", study.recipe, dict([chosen]))
        # A plain network has its own size of images, and so its own place in `overrides`.
        kept = {name: value for name, value in overrides.items() if name != "img_size"}
        baseline = defaults.apply(baseline)
        planned = plans | make_plans(plan_runs(baseline, "compare", seeds, output, kept), info)
        study = replace(study, variants={**study.variants, **baseline.variants})
        # Each round of seeds is a complete comparison.
        plans = {(label, seed): planned[label, seed] for seed in range(seeds) for label in study.variants}
    defaults.save()
    left = [label for (label, _), plan in plans.items() if not RunFolder(run_path(plan.config)).results.exists()]
    estimated = {}
    for number, label in enumerate(study.variants, start=1):
        if family and label in left:
            say(f"{number}/{len(study.variants)} {label}: timing a step")
        estimated[label] = estimate(plans[label, 0], measure=family and label in left)
    if family and left:
        seconds = sum((estimated[label].epoch_seconds or 0.0) * estimated[label].epochs for label in left)
        say(f"about {duration(seconds)} for {len(left)} trainings, without evaluation")
    results = finish_runs(plans, say, quiet=quiet)
    say("timing inference")
    rates, macs = _measure_inference({label: plans[label, 0].config for label in results})
    peaks: dict[str, int | None] = {}
    for number, label in enumerate(results if family else (), start=1):
        say(f"{number}/{len(results)} {label}: memory of a step")
        peaks[label] = _peak(plans[label, 0])
    rows = []
    for label, runs in results.items():
        task = plans[label, 0].task
        scores = [run["test_last" if run["chosen_on"] == "test" else "test_best"] for run in runs]
        rows.append(
            Row(
                model=label,
                parameters=runs[0]["parameters"],
                macs=macs[label],
                memory=peaks.get(label) or estimated[label].memory,
                values=tuple(each[task.chooses[0]] for each in scores),
                chosen_on="validation" if runs[0]["chosen_on"] == "validation" else "last epoch",
                test_images=scores[0]["count"],
                train_rate=statistics.median(run["images_per_second"] for run in runs),
                rate=rates[label],
                seconds=statistics.mean(run["seconds"] for run in runs),
                task=task.name,
                run=run_path(plans[label, 0].config),
                plain=is_plain(label),
                memory_measured=bool(peaks.get(label)),
            )
        )
    return rows


def _peak(plan: Plan) -> int | None:
    """The peak memory of a step, kept in the folder of the run."""
    settings = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": str(plan.device)}
    path = run_path(plan.config) / "memory.json"
    return cached_measurement(path, settings, lambda: {"peak": peak_memory(plan)})["peak"]


def run_path(config: TrainConfig) -> Path:
    """The folder of a run of a comparison."""
    return Path(config.output) / str(config.name)


def _measure_inference(configs: Mapping[str, TrainConfig]) -> tuple[dict[str, float], dict[str, int]]:
    """Inference speed and multiply-adds of trained networks."""
    device = choose_device(next(iter(configs.values())).device)
    models = {label: load(run_path(config), device) for label, config in configs.items()}
    runs: dict[str, Callable[[], object]] = {
        label: partial(model, model.example_inputs(BATCH)) for label, model in models.items()
    }
    with torch.inference_mode():
        rates = images_per_second(runs, BATCH, torch.cuda.synchronize if device.type == "cuda" else None)
    return rates, {label: forward_flops(model) // 2 for label, model in models.items()}
