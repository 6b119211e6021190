"""Prints the estimated cost of a training: for `--dry-run`, and before a training that takes long or may not fit."""

from mereo.runtime.printing import say
from mereo.runtime.text import counted, duration, gibibytes
from mereo.training.config import TrainConfig
from mereo.training.estimate import Estimate, estimate
from mereo.training.freezing import describe_trained, freeze_as_configured
from mereo.training.plan import Plan, as_plan
from mereo.training.start import start_from


def print_estimate(config: TrainConfig | Plan) -> None:
    """Print the result of `mereo train --dry-run`."""
    plan = as_plan(config)
    model = plan.build_model()
    if plan.config.weights is not None and not plan.config.resume:
        say(start_from(model, plan.config.weights))
    freeze_as_configured(model, plan.config)
    for line in describe_trained(model, plan.config.layer_decay, plan.config.lr):
        say(line)

    def before(estimated: Estimate) -> None:
        _print_size(estimated, plan.task.unit)
        say("timing a step ...")

    estimated = estimate(plan, before_timing=before)
    seconds = estimated.epoch_seconds
    if seconds is None:
        _print_size(estimated, plan.task.unit)
        return
    _print_rows(
        ("an epoch", f"about {duration(seconds)} for {estimated.images:,} {plan.task.unit}"),
        ("the run", _whole(estimated, seconds, plan.config.minutes)),
    )


def _whole(estimated: Estimate, seconds: float, minutes: float | None) -> str:
    """The time of a run and its epochs, from the seconds of one."""
    if minutes is not None and 60 * minutes < seconds * estimated.epochs:
        return f"{duration(60 * minutes)}, about {counted(max(round(60 * minutes / seconds), 1), 'epoch')}"
    epochs = counted(estimated.epochs, "epoch")
    return f"about {duration(seconds * estimated.epochs)} for {epochs}, without evaluation"


def announce(config: TrainConfig | Plan, *, measure: bool = True) -> None:
    """Print, before a training, a warning if a step does not fit into memory, and how long it takes if that is long.

    Args:
        config: of the training.
        measure: whether a long training is timed, unless that has been done.
    """

    def before(estimated: Estimate) -> None:
        warn_of_memory(estimated)
        if plan.config.weights is not None and not plan.config.resume:
            # Weights that cannot be loaded, or do not fit, raise an error now and not after the timing.
            start_from(plan.build_model(pooled=False), plan.config.weights)
        say("timing a step ...")

    plan = as_plan(config)
    estimated = estimate(plan, measure=lambda so_far: measure and so_far.long, before_timing=before, operations=measure)
    seconds = estimated.epoch_seconds
    if seconds is None:
        warn_of_memory(estimated)
        return
    whole = duration(seconds * estimated.epochs)
    epochs = counted(estimated.epochs, "epoch")
    say(f"about {whole} for {epochs} of {estimated.images:,} {plan.task.unit}, without evaluation")


def _print_size(estimated: Estimate, unit: str) -> None:
    memory, available = gibibytes(estimated.memory), gibibytes(estimated.available)
    _print_rows(
        ("parameters", f"{estimated.parameters:,}"),
        ("FLOPs", f"{estimated.flops / 1e9:.3f} G for the forward pass of one of the {unit} (a multiply-add is two)"),
        ("memory", f"about {memory} for a step of {estimated.batch_size}; {available} are free"),
    )
    warn_of_memory(estimated)


def _print_rows(*rows: tuple[str, str]) -> None:
    for name, value in rows:
        say(f"{name:<12}{value}")


def warn_of_memory(estimated: Estimate) -> None:
    """Print a warning if a step does not fit into memory."""
    if estimated.memory > estimated.available:
        memory, available = gibibytes(estimated.memory), gibibytes(estimated.available)
        say(
            f"warning: a step takes about {memory}, and {available} are free; give a smaller --batch-size, or"
            " --accumulate to work through a batch in parts."
        )
