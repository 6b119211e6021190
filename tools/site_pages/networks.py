"""A page for each family of networks, from the registry: presets, parameters counted now, arguments, recipes."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import yaml

import mereo
from mereo.catalogue import MECHANISMS
from mereo.models import MODELS, ModelEntry, VisionModel
from mereo.training.recipes import RECIPES
from site_pages.docstrings import markdown, prose
from site_pages.tables import arguments, table

INTRODUCTION = """# Networks

Every network of images takes any number of classes and channels, and any size that its architecture allows; networks of
tokens read sequences of any length, unless they state a longest one. `mereo models`
prints this table too; `mereo train --dry-run --model NAME` also prints the time and memory of a training step.

"""
ROW = ("input", "classes", "parameters", "source", "what")


def families() -> dict[str, list[ModelEntry]]:
    """The presets of each family, by the name of its file."""
    by_file: dict[str, list[ModelEntry]] = {}
    for entry in MODELS.values():
        by_file.setdefault(entry.module.__module__.rpartition(".")[2], []).append(entry)
    return by_file


@cache
def build(name: str) -> VisionModel:
    """The network of a preset without numbers in it: shapes alone, made once, so that counting is quick."""
    with torch.device("meta"):
        return mereo.create_model(name)


def count(module: torch.nn.Module | None) -> int:
    """Parameters."""
    return 0 if module is None else sum(p.numel() for p in module.parameters())


def row(entry: ModelEntry) -> list[str]:
    """The facts of one preset, in the order of ROW."""
    model = build(entry.name)
    decoder = count(getattr(model, "decoder", None))
    counted = f"{count(model) - decoder:,}" + (f" + {decoder:,} of the decoder" if decoder else "")
    cfg = entry.pretrained_cfg(entry.defaults)
    kind = entry.module.input_kind
    shape = "x".join(map(str, model.input_shape)) + ("" if kind == "images" else f" {kind}")
    rebuilt = f" A reconstruction: {prose(entry.reconstruction)}." if entry.reconstruction else ""
    return [shape, str(cfg["num_classes"]), counted, prose(entry.source), prose(entry.summary) + rebuilt]


def used_mechanisms(entry: ModelEntry) -> list[str]:
    """The mechanisms that a network is made of."""
    kinds = {type(module) for module in build(entry.name).modules()}
    return [name for name, each in sorted(MECHANISMS.items()) if each.target in kinds]


def written(fields: Mapping[str, Any]) -> str:
    """Fields of a configuration as they stand in its file."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=False)


def recipe(name: str) -> str:
    """What a recipe says, as it would stand on the command line."""
    chosen = RECIPES[name]
    reported = ", ".join(f"{value} % on {data}" for data, value in chosen.reported.items())
    return "\n\n".join(
        (
            f"### {name}",
            f"{prose(chosen.summary)} Source: {prose(chosen.source)}."
            + (f" Reported test accuracy: {reported}." if reported else ""),
            f"```yaml\n{written(chosen.changes)}```",
            *(f"On {data}:\n\n```yaml\n{written(more)}```" for data, more in chosen.by_data.items()),
            f"```sh\nmereo train --recipe {name} --dry-run\n```",
        )
    )


def page(presets: Sequence[ModelEntry]) -> str:
    """The page of one family."""
    module = presets[0].module
    mechanisms = dict.fromkeys(name for entry in presets for name in used_mechanisms(entry))
    given = ", num_classes=5" if module.outputs_argument == "num_classes" else ""
    changes = []
    for entry in presets:
        differs = ", ".join(f"`{name}={value!r}`" for name, value in entry.arguments.items())
        changes.append((f"`{entry.name}`", *row(entry)[:3], f"{prose(entry.summary)} {differs}"))
    recipes = dict.fromkeys(entry.recipe for entry in presets if entry.recipe is not None)
    linked = ", ".join(f"[{name}](../mechanisms/{name}.md)" for name in mechanisms)
    return "\n".join(
        (
            f"# {module.__name__}\n",
            markdown(inspect.getdoc(module) or "", lambda section: section != "Args"),
            f"Mechanisms in it: {linked}.\n" if linked else "",
            f"A reconstruction: {prose(presets[0].reconstruction)}.\n" if presets[0].reconstruction else "",
            "## Presets\n",
            table(("name", "input", "classes", "parameters", "what, and the arguments that make it"), changes),
            f'```python\nmodel = mereo.create_model("{presets[0].name}"{given})\n```\n',
            f"## Arguments of {module.__name__}\n",
            arguments(module),
            "## Recipes\n" if recipes else "",
            "\n\n".join(map(recipe, recipes)),
            "\n## Source and cost\n",
            markdown(inspect.getdoc(sys.modules[module.__module__]) or ""),
            f"Code: `src/{module.__module__.replace('.', '/')}.py`.",
        )
    )


def pages() -> dict[str, str]:
    """All of them, and the table of all presets."""
    listed = [
        (f"[`{entry.name}`]({family}.md)", *row(entry)) for family, presets in families().items() for entry in presets
    ]
    made = {"networks/index.md": INTRODUCTION + table(("name", *ROW), listed)}
    return made | {f"networks/{family}.md": page(presets) for family, presets in families().items()}
