"""A page for each mechanism, from its row in the catalogue, its docstring and its example."""

import inspect
import sys

import torch

import mereo
from mereo.core import Mechanism
from mereo.mechanisms import MECHANISMS
from site_pages.docstrings import markdown
from site_pages.tables import arguments, table
from write_tables import table as rows_of_all

INTRODUCTION = """# Mechanisms

Every mechanism moves messages from senders to receivers in three steps: *agree* (how well does what a sender says fit a
receiver?), *couple* (who listens to whom?) and *combine* (what does a receiver become?). `mereo mechanisms` prints this
table too, and [How mereo is built](../architecture.md) explains its columns.

"""


def _shape(tensor: torch.Tensor) -> str:
    return f"`{tuple(tensor.shape)}`"


def _times(count: int) -> str:
    return f", made {count} times" if count > 1 else ""


def example(row: Mechanism) -> str:
    """What goes into the mechanism's own example, what comes out, and the couplings in between, run now."""
    torch.manual_seed(0)
    module, inputs = row.example()
    with mereo.record(module) as trace, torch.no_grad():
        output = module.eval()(*inputs)
    facts = [
        ("inputs", ", ".join(map(_shape, inputs))),
        ("output", _shape(output)),
        *((f"couplings `{name}`", f"{_shape(trace[name])}{_times(len(trace.steps(name)))}") for name in trace),
        *((f"parameter `{name}`", _shape(parameter)) for name, parameter in module.named_parameters()),
    ]
    body = inspect.cleandoc("\n" + inspect.getsource(row.example).partition("\n")[2])
    written = body.replace("return module, ", "inputs = ").replace("return ", "module, inputs = ")
    return f"```python\n{written}\noutput = module(*inputs)\n```\n\n" + table(("", "shape"), facts)


def page(row: Mechanism) -> str:
    """The page of one mechanism."""
    home = row.module.__module__
    room = home.split(".")[1]
    facts = (row.kind, row.over, row.says, str(row.steps), row.update)
    columns = ("kind", "couplings sum to one over", "a sender says", "steps", "update")
    doc, source = inspect.getdoc(row.module) or "", inspect.getdoc(sys.modules[home]) or ""
    return "\n".join(
        (
            f"# {row.name}\n",
            markdown(doc, lambda section: section != "Args"),
            table(columns, [facts]),
            f"## Arguments of {row.module.__name__}\n",
            arguments(row.module),
            "## A small one\n",
            example(row),
            "## Source and cost\n",
            markdown(source),
            f"Code: `src/{home.replace('.', '/')}.py`. Everything beside it: [mereo.{room}](../api/{room}.md).",
        )
    )


def pages() -> dict[str, str]:
    """All of them, and the table of all."""
    listed = rows_of_all()
    for name in MECHANISMS:
        listed = listed.replace(f"| `{name}` |", f"| [`{name}`]({name}.md) |")
    found = {"mechanisms/index.md": INTRODUCTION + listed}
    return found | {f"mechanisms/{name}.md": page(row) for name, row in sorted(MECHANISMS.items())}
