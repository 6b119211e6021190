"""`mereo train`."""

from time import monotonic
from typing import Any

from mereo.cli.help_groups import TRAIN_GROUPS
from mereo.cli.options import TrainOptions
from mereo.cli.parse import join_task_options, parse
from mereo.cli.show import print_table
from mereo.runtime.collection import uncollected
from mereo.training.config import FIELDS


def given_options(words: list[str]) -> set[str]:
    """Names of the fields that options on a command line set."""
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    return {name.removeprefix("no_") if name not in FIELDS else name for name in names}


def given(words: list[str], command: str = "train") -> tuple[Any, dict[str, Any]]:
    """The configuration to start from, and the options that are given on the command line."""
    words = join_task_options(words)
    options = parse(TrainOptions, words, command, groups=TRAIN_GROUPS)
    return options.config, {name: getattr(options, name) for name in given_options(words) if name in FIELDS}


def run(words: list[str], command: str) -> None:
    """Train, or print the cost of training."""
    began = monotonic()
    config, options = given(words, command)
    if options.get("augment") == ("help",):
        from mereo.data.augmentation_help import rows

        print_table(("operation", "what it does", "values"), rows())
        return
    # With garbage collection, importing all that a training needs takes a quarter longer.
    with uncollected():
        import accelerate  # noqa: F401

        from mereo.api.training import start_training
        from mereo.training.results import summary

    data = options.pop("data", None)
    result = start_training(config, data=data, options=options, began=began)
    if result is not None and result.main:
        summary(result)
