"""`mereo crops`."""

from mereo.cli.options import CropsOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.errors import UsageError, check_positive
from mereo.runtime.printing import say


def run(words: list[str], command: str) -> None:
    """Cut boxes out of images, and print how many there are of each class."""
    options = parse(CropsOptions, words, command)
    check_positive(least=options.least)
    if not options.folder.exists():
        raise UsageError(f"folder is {str(options.folder)!r}, and there is none; give one with images and boxes.")
    from mereo.data.boxes import write_crops

    counts = write_crops(options.folder, options.out, least=options.least)
    print_table(("class", "parts"), [(name, f"{count:,}") for name, count in counts.items()])
    say(f"written: {options.out}; train on it with `mereo train --data {options.out}`")
