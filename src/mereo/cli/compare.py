"""`mereo compare`."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import fields

from mereo.cli.comparison_options import CompareOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.runtime.printing import say


def run(words: list[str], command: str) -> None:
    """Train several networks under one protocol and print their accuracy and cost."""
    options = parse(CompareOptions, words, command)
    from mereo import api

    given = {each.name: getattr(options, each.name) for each in fields(options) if each.name != "json"}
    # Progress lines are not part of the JSON document.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        comparison = api.compare(given.pop("models"), **given)
    if options.json:
        say(json.dumps(comparison.to_dicts(), indent=2))
        return
    say()
    print_table(*comparison.table())
    if comparison.measured:
        say()
        print_table(*comparison.measured_table())
    for text in comparison.texts:
        say(f"\n{text}")
    say("written: " + ", ".join(map(str, comparison.written)))
