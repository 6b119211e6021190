"""`mereo train`."""

import dataclasses
import os
from pathlib import Path

from mereo.cli.options import TrainOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.runtime.printing import say
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.recipes import apply_recipe


def start_from(first: TrainOptions, words: list[str]) -> TrainConfig:
    """The configuration that options on the command line change: a file, the run to resume, a recipe, or the defaults.

    Args:
        first: the options, parsed on top of the defaults.
        words: the command line itself, which shows which options were given.
    """
    from mereo.training.run_folder import RunFolder, check_resumable, folder_to_resume

    if first.config is not None:
        path = first.config / "config.yaml" if first.config.is_dir() else first.config
        if first.resume and not path.is_file():
            check_resumable(RunFolder(first.config))
        config = TrainConfig.from_yaml(path)
        # A run folder is the name of the run to resume.
        in_run_folder = first.resume and path.name == "config.yaml"
        return config.replace(name=path.parent.name, output=str(path.parent.parent)) if in_run_folder else config
    given = {word.split("=")[0] for word in words}
    base = TrainConfig()
    if first.recipe is not None:
        base = apply_recipe(
            first.recipe,
            first.model if "--model" in given else None,
            first.data if "--data" in given else None,
        )
    if first.resume:
        named = base.replace(
            model=first.model if "--model" in given else base.model,
            data=first.data if "--data" in given else base.data,
            name=first.name,
            output=first.output,
        )
        folder = folder_to_resume(named)
        if folder.config.exists():
            return TrainConfig.from_yaml(folder.config).replace(name=first.name, output=first.output)
    return base


def options_from(words: list[str], command: str = "train") -> TrainConfig:
    """The configuration of a command line, not resolved yet."""
    first = parse(TrainOptions, words, command)
    base = start_from(first, words)
    given = {name: getattr(base, name) for name in FIELDS}
    options = parse(TrainOptions, words, command, TrainOptions(**given, config=first.config))
    config = TrainConfig(**{name: getattr(options, name) for name in FIELDS})
    if set(options.model_args) != set(base.model_args):
        config = dataclasses.replace(config, model_args={**base.model_args, **options.model_args})
    config.check()
    return config


def _find_rate(config: TrainConfig) -> None:
    from mereo.training.plan import make_plan
    from mereo.training.rate_finder import draw_rates, find_rate
    from mereo.training.run_folder import run_name

    sweep = find_rate(make_plan(config))
    path = Path(config.output) / f"{run_name(config)}-rates.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_rates(sweep, path)
    say(f"the loss was lowest at a rate of {sweep.lowest:.1e}, after {len(sweep.rates)} steps: {path}")
    say(f"suggested: --lr {sweep.suggested:g}")


def run(words: list[str], command: str) -> None:
    """Train, or print the cost of training."""
    config = options_from(words, command)
    if config.augment == ("help",):
        from mereo.data.augmentation_help import rows

        print_table(("operation", "what it does", "values"), rows())
        return
    from mereo.training.plan import make_plan

    if config.dry_run:
        from mereo.training.estimate import print_estimate

        print_estimate(make_plan(config))
        return
    if config.find_lr:
        _find_rate(config)
        return
    from mereo.training.engine import train
    from mereo.training.estimate import announce
    from mereo.training.results import summary
    from mereo.training.run_folder import check_resumable, folder_to_resume, resumed

    if config.resume and os.environ.get("RANK", "0") == "0":
        folder = folder_to_resume(config)
        check_resumable(folder)
        line = resumed(folder)
        if line is not None:
            say(line)
    plan = make_plan(config)
    if os.environ.get("RANK", "0") == "0":
        announce(plan)
    result = train(plan)
    if result.main:
        summary(result)
