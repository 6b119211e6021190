"""`mereo models`, `mechanisms`, `datasets`, `tasks`, `recipes`: the catalogues, searchable, with sources."""

import fnmatch
import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from mereo.cli.options import ListOptions, MechanismsOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.errors import unknown
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from mereo.models import ModelEntry
    from mereo.tasks import Task

Rows = list[dict[str, str]]
_UNITS = {1e3: "k", 1e6: "M", 1e9: "G", 1e12: "T"}
LONGEST_WEIGHTS = 15
"""Letters of names of bundled weights in the list of networks; of more their number is shown."""


def _models() -> Rows:
    from mereo.models import MODELS
    from mereo.models.multiply_adds import multiply_adds
    from mereo.models.pretrained import tags_of

    rows = []
    for name, entry in sorted(MODELS.items(), key=lambda item: (item[1].module.input_kind != "images", item[0])):
        module, defaults = entry.module, entry.defaults
        shape = entry.pretrained_cfg(defaults).get("input_size")
        length = f"{defaults.get('context', '')} {module.input_kind}".strip()
        rows.append(
            {
                "name": name,
                "kind": _kind(entry),
                "input": length if shape is None else "x".join(map(str, shape)),
                "output": module.output_kind,
                "classes": "-" if module.outputs_argument is None else str(defaults[module.outputs_argument]),
                "size": _size(entry.parameters),
                "MACs": "" if (count := multiply_adds(name)) is None else _size(count),
                "weights": ", ".join(tags_of(name)) or "-",
                "source": entry.source,
                **_names(entry),
                "what": entry.summary,
            }
        )
    return rows


def _kind(entry: "ModelEntry") -> str:
    """The room of a network, in a word: capsules, vision, or what it reads."""
    if entry.module.input_kind != "images":
        return entry.module.input_kind
    return "capsules" if ".capsule" in entry.module.__module__ else "vision"


def _size(count: int) -> str:
    """A number of parameters or multiply-adds to three digits, in thousands (k), millions, billions (G) or more."""
    scale = next((unit for unit in (1e3, 1e6, 1e9) if count < 999.5 * unit), 1e12)
    value = count / scale
    digits = f"{value:.0f}" if scale == 1e3 or value >= 999.5 else f"{value:#.3g}".rstrip(".")
    return f"{digits} {_UNITS[scale]}"


def _short(row: dict[str, str]) -> dict[str, str]:
    """A network in the list of many, on a line of 100 letters: the kind says what a length counts."""
    weights = row["weights"]
    counted = f"{weights.count(',') + 1} sets" if len(weights) > LONGEST_WEIGHTS else weights
    short = {key: row[key] for key in ("name", "kind", "input", "size", "MACs")}
    return {**short, "input": row["input"].removesuffix(f" {row['kind']}"), "weights": counted}


def _names(entry: "ModelEntry") -> dict[str, str]:
    """Cells that few networks have: other names, and why one is a reconstruction."""
    return {"aliases": ", ".join(entry.aliases) or "-", "reconstruction": entry.reconstruction or "-"}


def _of_library(pattern: str) -> Rows:
    """Networks of another library, by a pattern such as "timm:resnet*"."""
    from mereo.models.plain.libraries import LIBRARIES

    name, _, wanted = pattern.partition(":")
    library = LIBRARIES[name]
    chosen = fnmatch.filter(library.names(), wanted)
    if not chosen:
        library.check(wanted)
    rows = []
    for network in chosen:
        height, width = library.facts(network).size
        rows.append({"name": f"{name}:{network}", "input": f"3x{height}x{width}", "source": library.source})
    return rows


def _mechanisms() -> Rows:
    from mereo.catalogue import FAMILIES, MECHANISMS

    families = list(FAMILIES)
    return [
        {"name": name, "family": m.family}
        | m.facts()
        | {"promises": ", ".join(sorted(m.promises)), "source": str(m.source), "what": m.summary}
        for name, m in sorted(MECHANISMS.items(), key=lambda item: (families.index(item[1].family), item[0]))
    ]


def _datasets() -> Rows:
    from mereo.data import DATASETS
    from mereo.data.registry import show_option

    return [
        {
            "name": name,
            "classes": str(info.num_classes),
            "images": ", ".join(f"{split} {count:,}" for split, count in info.splits.items()),
            "fields": ", ".join(info.fields),
            "options": ", ".join(f"{name}={show_option(value)}" for name, value in info.options.items()) or "-",
            "source": info.source,
            "what": info.summary,
        }
        for name, info in sorted(DATASETS.items())
    ]


def _tasks() -> Rows:
    from mereo.tasks import TASKS

    def metrics(task: "type[Task]") -> str:
        final = task().metrics()
        final.final = True
        return ", ".join(final.compute())

    return [
        {
            "name": name,
            "needs": ", ".join(task.requires),
            "metrics": metrics(task),
            "best epoch by": " ".join(task.chooses),
            "losses": ", ".join(task.losses) or "-",
            "what": (inspect.getdoc(task) or "").partition("\n")[0],
        }
        for name, task in sorted(TASKS.items())
    ]


def _recipes() -> Rows:
    from mereo.training.recipes import RECIPES

    return [
        {
            "name": name,
            "model": str(recipe.changes["model"]),
            "data": ", ".join(dict.fromkeys([str(recipe.changes["data"]), *recipe.by_data])),
            "reported test %": ", ".join(f"{data} {value}" for data, value in recipe.reported.items()) or "-",
            "source": recipe.source,
            "what": recipe.summary,
        }
        for name, recipe in sorted(RECIPES.items())
    ]


LISTS: dict[str, Callable[[], Rows]] = {
    "models": _models,
    "mechanisms": _mechanisms,
    "datasets": _datasets,
    "tasks": _tasks,
    "recipes": _recipes,
}


def _called(row: dict[str, str]) -> list[str]:
    """The name of a row, and its aliases."""
    return [row["name"], *row.get("aliases", "").split(", ")]


def matching(rows: Rows, pattern: str) -> Rows:
    """Rows whose name matches a pattern, or, for text without wildcards, rows that contain it."""
    if any(c in pattern for c in "*?["):
        return [row for row in rows if any(fnmatch.fnmatch(name, pattern) for name in _called(row))]
    return [row for row in rows if pattern.lower() in " ".join(row.values()).lower()]


def run(words: list[str], command: str) -> None:
    """Print one of the lists."""
    options = parse(MechanismsOptions if command == "mechanisms" else ListOptions, words, command)
    from_library = command == "models" and options.pattern.partition(":")[0] in ("timm", "torchvision")
    if from_library and ":" in options.pattern:
        rows = chosen = _of_library(options.pattern)
    else:
        rows = LISTS[command]()
        chosen = matching(rows, options.pattern)
    if isinstance(options, MechanismsOptions) and options.interface is not None:
        chosen = [row for row in chosen if row["interface"] == options.interface]
    if not chosen:
        raise unknown(command.removesuffix("s"), options.pattern, [row["name"] for row in rows])
    if options.json:
        say(json.dumps(chosen, indent=2))
        return
    short = command == "models" and len(chosen) > 1 and "weights" in chosen[0]
    shown = [_short(row) for row in chosen] if short else chosen
    header = ["description" if name == "what" else name for name in shown[0]]
    print_table(header, [list(row.values()) for row in shown])
    if short:
        say(
            "\nsize: parameters; MACs: multiply-adds of one input, empty where its values decide how many"
            "\n`mereo models NAME` shows source and arguments; networks of timm are timm:NAME"
        )
    named = [row["name"] for row in chosen if options.pattern in _called(row)]
    if command == "models" and named:
        name = named[0]
        say(f"\narguments of {name}, set by create_model(..., NAME=VALUE) or --model-args NAME=VALUE\n")
        print_table(("argument", "default"), _arguments(name))
    if command == "tasks" and options.pattern in {row["name"] for row in chosen}:
        name = options.pattern
        if known := _task_options(name):
            say(f"\noptions of {name}, set by --task.NAME VALUE or under task_options: in a configuration\n")
            print_table(("option", "default", "description"), known)
    if command == "mechanisms" and options.pattern in {row["name"] for row in chosen}:
        say()
        print_table(("fact", "value"), _details(options.pattern))


def _arguments(name: str) -> list[tuple[str, str]]:
    from mereo.models import get_model_entry

    return [(argument, repr(value)) for argument, value in get_model_entry(name).defaults.items()]


def _task_options(name: str) -> list[tuple[str, str, str]]:
    from mereo.tasks import get_task
    from mereo.tasks.options import describe_options

    return describe_options(get_task(name).Options)


def _details(name: str) -> list[tuple[str, str]]:
    from mereo.catalogue import PROMISES, get_mechanism

    entry = get_mechanism(name)
    return [
        ("class or function", f"{entry.target.__module__}.{entry.target.__name__}"),
        ("source", entry.source.link),
        *([("fits no slot", entry.why_no_interface)] if entry.interface is None else []),
        *((promise, meaning) for promise, meaning in PROMISES.items() if promise in entry.promises),
        *((f"not {promise}", reason) for promise, reason in entry.lacks.items()),
        *((f"zero gradient: {parameter}", reason) for parameter, reason in entry.zero_gradients.items()),
    ]
