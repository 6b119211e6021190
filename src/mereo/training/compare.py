"""Studies of networks given on the command line, and their timing.

A network is given as `capsnet`, as `capsnet:routing_steps=1,decoder=false`, or as a recipe, which includes a network
and an optimiser.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mereo.errors import UsageError, unknown
from mereo.runtime.turns import median_seconds
from mereo.training.option_values import parse_arguments, parse_insertion, split_arguments
from mereo.training.recipes import RECIPES, apply_recipe, is_recipe
from mereo.training.studies import Study, Variant, folder_name

REPEATS = 5
"""Rounds of a timing; the median counts."""


def parse_variant(text: str, recipe: str | None = None, *, recipes: bool = True) -> tuple[str, Variant]:
    """`capsnet:routing_steps=1,decoder=false` as a label and the variant of a study.

    Args:
        text: a network or a recipe, with arguments of the network after a colon.
        recipe: for networks that are not given as recipes; the defaults of `mereo train` when None.
        recipes: whether a name that a network and a recipe have means the recipe.
    """
    from mereo.models import MODELS, get_model_entry
    from mereo.models.registry import ALIASES, library_of

    name, _, arguments = text.partition(":")
    if library_of(text) is not None:
        network, _, arguments = arguments.partition(":")
        name = f"{name}:{network}"
    words = split_arguments(arguments)
    try:
        given = parse_arguments(words)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}; write capsnet:routing_steps=1,decoder=false.") from None
    label = name + (":" + ",".join(sorted(words)) if words else "")
    if is_recipe(name) and (recipes or name not in MODELS):
        return label, Variant({"model": apply_recipe(name).model}, given, recipe=name)
    name = ALIASES.get(name, name)
    if name not in MODELS and library_of(name) is None:
        if Path(text).exists():
            raise UsageError(
                f"{text!r} is a file or folder, and this command trains networks by name; compare trained ones with"
                f" `mereo evaluate {text} OTHER --data DATA`."
            )
        raise unknown("network or recipe", name, [*MODELS, *RECIPES])
    for argument in given:
        if argument not in get_model_entry(name).defaults:
            raise unknown(f"argument of {name}", argument, get_model_entry(name).defaults)
    return label, Variant({"model": name}, given, recipe=recipe)


def _with_insertion(label: str, variant: Variant, text: str) -> tuple[str, Variant]:
    """A variant with a mechanism in its network; the variant as it is for "none"."""
    if text == "none":
        return label, variant
    parse_insertion(text)
    return f"{label}+{text}", replace(variant, changes={**variant.changes, "insert": (text,)})


def make_study(
    texts: Sequence[str], recipe: str | None = None, *, recipes: bool = True, insert: Sequence[str] = ()
) -> Study:
    """The study that compares the named networks; arguments as for `parse_variant`.

    Args:
        texts: networks and recipes.
        recipe: for networks that are not given as recipes.
        recipes: whether a name that a network and a recipe have means the recipe.
        insert: mechanisms as for `--insert`, each put into each network, and "none" for the network alone.
    """
    if not texts:
        raise UsageError("models is empty; give some, such as mspcaps_tiny capsnet:routing_steps=1.")
    if recipe is not None and not is_recipe(recipe):
        raise unknown("recipe", recipe, RECIPES)
    variants: dict[str, Variant] = {}
    for text in texts:
        named = parse_variant(text, recipe, recipes=recipes)
        for label, variant in [_with_insertion(*named, mechanism) for mechanism in insert] or [named]:
            if folder_name(label) in map(folder_name, variants):
                raise UsageError(f"{label} is given twice; give each network once.")
            variants[label] = variant
    return Study("Which network, at what cost?", "ours", recipe, variants)


def images_per_second(
    runs: Mapping[str, Callable[[], object]], images: int, settle: Callable[[], None] | None = None
) -> dict[str, float]:
    """The median speed of functions that each process `images` images, timed in turn; `settle` waits for a device."""

    def settled(run: Callable[[], object]) -> None:
        run()
        if settle is not None:
            settle()

    calls = {name: partial(settled, run) for name, run in runs.items()}
    return {name: images / seconds for name, seconds in median_seconds(calls, REPEATS).items()}


def comparison_folder(data: str, output: str) -> Path:
    """The folder of a comparison."""
    return Path(output) / f"compare-{Path(data).name}"
