"""`python -m mereo.data.solids FOLDER` makes a folder of pictures, one subfolder a class."""

import argparse
import sys

from mereo.data.solids.photos import make_photos
from mereo.errors import MereoError, UsageError
from mereo.runtime.printing import say


def main(words: list[str] | None = None) -> int:
    """Write the pictures and print how many."""
    parser = argparse.ArgumentParser(prog="python -m mereo.data.solids", description=__doc__)
    parser.add_argument("folder", help="a new folder")
    parser.add_argument("--images", type=int, default=80, help="of each class (default: 80)")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default: 0)")
    given = parser.parse_args(words)
    try:
        count = make_photos(given.folder, given.images, given.seed)
    except (UsageError, MereoError, OSError) as error:
        say(f"mereo: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    say(f"{count:,} pictures in {given.folder}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
