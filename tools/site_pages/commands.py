"""The reference of the command line, from what `mereo COMMAND --help` prints."""

import contextlib
import inspect
import io
import os
import re
from unittest.mock import patch

from mereo.cli import comparison_options, options
from mereo.cli.main import COMMANDS, main
from site_pages.docstrings import markdown, prose
from site_pages.tables import table

INTRODUCTION = """# Commands

`mereo --help` lists the commands and `mereo COMMAND --help` the options of one. Exit codes: 0 done, 1 failed, 2 invalid
usage.

Four of the commands are functions as well, and their options keyword arguments, `--batch-size 32` being
`batch_size=32`; [Your own photographs](photos.md) shows each of them.

```python
import mereo

run = mereo.train(data="digits", epochs=1, limit=200)
print(mereo.evaluate(run), mereo.train.__doc__)
```

"""
WIDE = "400"
"""Columns of the terminal that the help is printed for, so that an entry is not broken."""
_FRAME = re.compile("[\u2500-\u257f]+")
_DEFAULT = re.compile(r"\s*\(default: (.*)\)$|\s*\((required)\)$")


def help_of(command: str) -> str:
    """What `mereo COMMAND --help` prints."""
    # The frames around the options are drawn only where the output can show them.
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with patch.dict(os.environ, COLUMNS=WIDE), contextlib.redirect_stdout(printed):
        code = main([command, "--help"])
    if code != 0:
        raise RuntimeError(f"mereo {command} --help ended with {code}")
    printed.seek(0)
    return printed.read()


def options_of(printed: str) -> list[tuple[str, str, str]]:
    """The options of a help text: as they are written, the default, what they are."""
    entries: list[list[str]] = []
    for line in printed.splitlines():
        if not line.startswith("\u2502"):
            continue
        content = _FRAME.sub("", line)[1:].rstrip()
        if content.startswith(" "):
            entries[-1][1] += f" {content.strip()}"
        else:
            entries.append([*re.split(r"\s{2,}", content, maxsplit=1), ""][:2])
    rows = []
    for written, text in entries:
        if written == "-h, --help":
            continue
        default = _DEFAULT.search(text)
        value = (default[1] or default[2] or "") if default else ""
        rows.append((written, value, text[: default.start()].strip() if default else text.strip()))
    return rows


def section(command: str) -> str:
    """The section of one command."""
    declared = (vars(options) | vars(comparison_options)).get(f"{command.capitalize()}Options", options.ListOptions)
    rows = []
    for written, default, text in options_of(help_of(command)):
        shown = written.replace("{None}|", "").replace("|", "\\|")
        rows.append((f"`{shown}`", f"`{default}`" if default not in ("", "None") else "", prose(text)))
    line = COMMANDS[command][1]
    text = f"{line[0].upper()}{line[1:]}." if declared is options.ListOptions else inspect.getdoc(declared) or ""
    return f"## mereo {command}\n\n{markdown(text)}\n" + table(("option", "default", "what it is"), rows)


def pages() -> dict[str, str]:
    """The page of all commands."""
    return {"commands.md": INTRODUCTION + "\n".join(map(section, COMMANDS))}
