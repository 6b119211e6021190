"""`mereo compare`."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from typing import Any

from mereo.cli.options import CompareOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table, say
from mereo.errors import check_positive
from mereo.files import check_name
from mereo.training.config import show_size

SHARED = (
    "task", "data", "data_root", "epochs", "limit", "batch_size", "lr", "img_size", "warmup_epochs", "device",
    "precision",
)  # fmt: skip


def run(words: list[str], command: str) -> None:
    """Train several networks under one protocol and print their accuracy and cost."""
    options = parse(CompareOptions, words, command)
    given: dict[str, Any] = {name: getattr(options, name) for name in SHARED if getattr(options, name) is not None}
    check_positive(seeds=options.seeds, **{k: v for k, v in given.items() if k in ("epochs", "limit", "batch_size")})
    from mereo.export.comparison import cells, columns, notes, ranked, write_comparison
    from mereo.export.rows import run_comparison
    from mereo.training.compare import comparison_folder

    folder = comparison_folder(options.data, options.output)
    check_name("data", folder)
    # Progress lines are not part of the JSON document.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        rows = run_comparison(options.models, options.seeds, options.output, given, options.recipe, say)
    shown = given | ({"img_size": show_size(given["img_size"])} if "img_size" in given else {})
    parts = [
        f"{name} {shown[name]}" for name in SHARED if name in shown and name not in ("data", "data_root", "device")
    ]
    protocol = ", ".join([*([f"recipe {options.recipe}"] if options.recipe else []), *parts, f"seeds {options.seeds}"])
    paths = write_comparison(rows, folder, options.data, protocol)
    if options.json:
        print(json.dumps([row.to_dict() for row in ranked(rows)], indent=2))
        return
    say()
    print_table(columns(rows), [cells(row) for row in ranked(rows)])
    say("\n" + "\n".join(notes(rows, protocol)))
    say("written: " + ", ".join(map(str, paths)))
