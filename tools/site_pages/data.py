"""The page of data sets and the page of tasks, from their registers."""

import inspect
import sys

from mereo.data import DATASETS, Batch, DatasetInfo
from mereo.tasks import TASKS, Task
from site_pages.docstrings import blocks, entries, markdown, prose
from site_pages.tables import table

DATA = """# Data sets

`mereo train --data NAME` trains on one of these; `mereo datasets` prints the table too, and `mereo doctor` shows which
of them this machine has. Folders and tables of images need no registration; [Scaling](scaling.md) is about data beyond
memory.

```python
import mereo

splits = mereo.data.load_splits("digits", img_size=28)
print(len(splits.train), len(splits.test), splits.class_names)
print(mereo.data.list_datasets("*mnist"), splits.test.image_shape)
```

"""
TASK = """# Tasks

`mereo train --task NAME` chooses what is predicted; `mereo tasks` prints the table too. A batch has the fields at the
end of this page.

```python
import mereo

task = mereo.tasks.get_task("classification")(("cat", "dog"))
print(task.chooses, task.output_names)
```

"""


def dataset_row(info: DatasetInfo) -> tuple[str, ...]:
    """The facts of one data set."""
    size = "text" if info.counts == "bytes" else "x".join(map(str, (info.in_chans, *(info.size or ("any", "any")))))
    splits = ", ".join(f"{split} {count:,}" for split, count in info.splits.items())
    augment = " ".join(f"`{operation}`" for operation in info.augment)
    found = "part of Python" if info.counts == "bytes" else "part of the package"
    files = ", ".join(f"`{pattern}`" for pattern in info.files) or found
    facts = (size, str(info.num_classes), splits, _fields(info.fields), augment, files)
    return (f"`{info.name}`", prose(info.summary), *facts, prose(info.source))


def datasets() -> str:
    """The page of data sets."""
    columns = ("name", "what", "images", "classes", "splits", "fields", "default augmentation", "files", "source")
    return DATA + table(columns, [dataset_row(info) for _, info in sorted(DATASETS.items())])


def _fields(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def metrics_of(task: type[Task]) -> tuple[str, ...]:
    """The names of the figures of a split."""
    return tuple(task().metrics().compute())


def task_row(task: type[Task]) -> tuple[str, ...]:
    """The facts of one task."""
    metric, direction = task.chooses
    what = markdown(inspect.getdoc(task) or "").partition("\n")[0]
    best = f"{direction}imum of `{metric}`"
    return (f"[`{task.name}`](#{task.name})", what, _fields(task.requires), _fields(metrics_of(task)), best)


def section(task: type[Task]) -> str:
    """The section of one task: its docstring, its losses, and its file's docstring."""
    home = task.__module__
    losses = f"**Losses** (`--loss`): {_fields(task.losses)}.\n" if task.losses else ""
    code = f"Code: `src/{home.replace('.', '/')}.py`.\n"
    about = markdown(inspect.getdoc(sys.modules[home]) or "")
    return "\n".join((f"## {task.name}\n", markdown(inspect.getdoc(task) or ""), about, losses, code))


def batch_fields() -> str:
    """The fields of a batch."""
    body = next(body for name, body in blocks(inspect.getdoc(Batch) or "") if name == "Shapes")
    return "## Fields of a batch\n\n" + table(("field", "holds"), [(f"`{n}`", prose(t)) for n, t in entries(body)])


def tasks() -> str:
    """The page of tasks."""
    listed = [task for _, task in sorted(TASKS.items())]
    columns = ("name", "what", "needs", "metrics", "best epoch by")
    return TASK + "\n".join(
        (table(columns, [task_row(task) for task in listed]), *map(section, listed), batch_fields())
    )


def pages() -> dict[str, str]:
    """Both."""
    return {"datasets.md": datasets(), "tasks.md": tasks()}
