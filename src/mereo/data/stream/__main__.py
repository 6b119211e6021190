"""`python -m mereo.data.stream FOLDER TARGET`: pack an image folder into shards."""

import argparse
import sys

from mereo.data.layout_options import LayoutOptions
from mereo.data.stream.shards import SHARD_BYTES, write_shards
from mereo.errors import MereoError, UsageError
from mereo.runtime.printing import say


def main(words: list[str] | None = None) -> int:
    """Read the arguments and write the shards; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mereo.data.stream", description=write_shards.__doc__)
    parser.add_argument("folder", help="folder of images, .zip of one, or table, as for mereo train --data")
    parser.add_argument("target", help="folder of the shards")
    parser.add_argument("--shard-mib", type=int, default=SHARD_BYTES >> 20, help="size of a shard")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which files are packed")
    parser.add_argument("--task", help="of a folder that fits several, such as segmentation, multilabel, regression")
    parser.add_argument(
        "--label-column", nargs="+", default=[], help="of a table; several for a label or a number each"
    )
    options = parser.parse_args(words)
    stated = LayoutOptions(label_column=tuple(options.label_column), task=options.task)
    size = options.shard_mib << 20
    try:
        paths = write_shards(options.folder, options.target, shard_bytes=size, seed=options.seed, options=stated)
    except (MereoError, UsageError) as error:
        say(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    say(f"{len(paths)} shards in {options.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
