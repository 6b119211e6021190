"""A page for each mechanism, made from its catalogue entry, docstring and example; a table for each family."""

import inspect
import sys

import torch
from torch import nn

import mereo
from mereo.catalogue import FAMILIES, MECHANISMS, PROMISES
from mereo.core import Mechanism
from site_pages.docstrings import markdown, prose
from site_pages.tables import arguments, table

INTRODUCTION = """# Mechanisms

Every mechanism moves messages from senders to receivers in three steps: *agree* (how well does what a sender says fit a
receiver?), *couple* (who listens to whom?) and *combine* (what does a receiver become?). Gates, scans, mixers and token
selection have no couplings; they record gates, states or kept tokens instead. `mereo mechanisms` prints these tables
too, and [How mereo is built](../architecture.md) explains their columns.

"""
MEANINGS = "## What a promise means\n\nEach is tested for every mechanism that makes it.\n"
YES = "yes"


def columns_and_rows(family: str) -> tuple[list[str], list[list[str]]]:
    """The table of one family: its facts, and a column for every promise that one of its mechanisms makes."""
    entries = [(name, entry) for name, entry in sorted(MECHANISMS.items()) if entry.family == family]
    facts = [column for column in entries[0][1].facts() if any(e.facts()[column] != "-" for _, e in entries)]
    promises = [promise for promise in PROMISES if any(promise in e.promises for _, e in entries)]
    rows = [
        [
            f"[`{name}`]({name}.md)",
            *(entry.facts()[column] for column in facts),
            entry.source.markdown,
            *(YES if promise in entry.promises else "" for promise in promises),
        ]
        for name, entry in entries
    ]
    return ["mechanism", *facts, "source", *promises], rows


def listing() -> str:
    """The tables of all families that have a mechanism."""
    families = [family for family in FAMILIES if any(entry.family == family for entry in MECHANISMS.values())]
    tables = (f"## {family.capitalize()}\n\n{table(*columns_and_rows(family))}" for family in families)
    meanings = "".join(f"- **{promise}**: {prose(meaning)}\n" for promise, meaning in PROMISES.items())
    return "\n".join((*tables, MEANINGS, meanings))


def _shape(tensor: torch.Tensor) -> str:
    return f"`{tuple(tensor.shape)}`"


def _times(count: int) -> str:
    return f", made {count} times" if count > 1 else ""


def example(entry: Mechanism) -> str:
    """What goes into the mechanism's own example, what comes out, and what is recorded in between, run now."""
    torch.manual_seed(0)
    module, inputs = entry.example()
    call = "output = module(*inputs)"
    if not inspect.isclass(entry.target):
        changed = entry.target(module)
        name = entry.target.__name__
        if isinstance(changed, nn.Module):
            module, call = changed, f"output = {name}(module)(*inputs)"
        else:
            call = f"with {name}(module):\n    output = module(*inputs)"
    with mereo.record(module) as trace, torch.no_grad():
        output = module.eval()(*inputs)
    recorded = ((f"recorded by `{name}`", f"{_shape(trace[name])}{_times(len(trace.steps(name)))}") for name in trace)
    facts = [
        ("inputs", ", ".join(map(_shape, inputs))),
        ("output", _shape(output)),
        *recorded,
        *((f"parameter `{name}`", _shape(parameter)) for name, parameter in module.named_parameters()),
    ]
    body = inspect.cleandoc("\n" + inspect.getsource(entry.example).partition("\n")[2])
    written = body.replace("return module, ", "inputs = ").replace("return ", "module, inputs = ")
    return f"```python\n{written}\n{call}\n```\n\n" + table(("", "shape"), facts)


def promises(entry: Mechanism) -> str:
    """What the entry promises, and the reasons for what it lacks."""
    made = [f"- **{promise}**: {prose(PROMISES[promise])}" for promise in PROMISES if promise in entry.promises]
    lacking = [f"- not {promise}: {prose(reason)}" for promise, reason in entry.lacks.items()]
    zero = [f"- `{name}` may get a zero gradient: {prose(why)}" for name, why in entry.zero_gradients.items()]
    return "\n".join([*made, *lacking, *zero]) + "\n"


def page(entry: Mechanism) -> str:
    """The page of one mechanism."""
    home = entry.target.__module__
    parts = home.split(".")
    package, room = (".".join(parts[:3]), parts[2]) if parts[1] == "mechanisms" else (".".join(parts[:2]), parts[1])
    doc, source = inspect.getdoc(entry.target) or "", inspect.getdoc(sys.modules[home]) or ""
    facts = {"family": entry.family} | entry.facts()
    return "\n".join(
        (
            f"# {entry.name}\n",
            markdown(doc, lambda section: section != "Args"),
            table([*facts, "source"], [[*facts.values(), entry.source.markdown]]),
            f"## Arguments of {entry.target.__name__}\n",
            arguments(entry.target),
            "## Promises\n",
            promises(entry),
            "## A small one\n",
            example(entry),
            "## Source and cost\n",
            markdown(source),
            f"Code: `src/{home.replace('.', '/')}.py`. Everything beside it: [{package}](../api/{room}.md).",
        )
    )


def pages() -> dict[str, str]:
    """All of them, and the tables of all families."""
    made = {"mechanisms/index.md": INTRODUCTION + listing()}
    return made | {f"mechanisms/{name}.md": page(entry) for name, entry in sorted(MECHANISMS.items())}
