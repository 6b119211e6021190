"""Runs the tutorials and keeps what each cell printed and drew: a text and pictures a cell under docs/tutorials/output.

Kept are the PNG and HTML files that a cell writes into its working folder, a temporary one.

    python tools/run_tutorials.py [NAME ...] [--output FOLDER]
"""

import argparse
import contextlib
import io
import os
import shutil
import tempfile
import time
from pathlib import Path

from site_pages.tutorials import DIGEST, KEPT, OUTPUT, cells, digest, scripts


def run(script: Path, output: Path) -> None:
    """Run one tutorial in a folder of its own; what it gives takes the place of what was in `output`."""
    text, names, began = script.read_text(), {"__name__": "__main__"}, time.monotonic()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        known: set[str] = set()
        for cell in cells(text):
            if not cell.number:
                continue
            # Empty lines before the code, so that an error names the line of the script.
            code = compile("\n" * (cell.line - 1) + cell.content, str(script), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(code, names)
            if printed.getvalue():
                (output / f"{cell.number:02}.txt").write_text(printed.getvalue())
            for file in sorted({path.name for path in Path().iterdir() if path.suffix in KEPT} - known):
                known.add(file)
                shutil.copyfile(file, output / f"{cell.number:02}-{file}")
    (output / DIGEST).write_text(digest(text) + "\n")
    print(f"{script.stem}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="tutorials to run; all by default")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write")
    chosen = parser.parse_args()
    known = {script.stem: script for script in scripts()}
    for name in chosen.names or known:
        if name not in known:
            parser.error(f"unknown tutorial {name!r}; known: {', '.join(known)}")
        run(known[name], chosen.output.absolute() / name)


if __name__ == "__main__":
    # One thread computes the same on every machine.
    os.environ |= {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    main()
