"""Count the multiply-adds of all presets and write the table that `mereo models` shows.

Run as `make counts`, or `python tools/count_networks.py`, after a preset was added or changed.
"""

import json

from mereo.models import MODELS
from mereo.models.multiply_adds import TABLE, count_multiply_adds
from mereo.runtime.printing import say


def main() -> None:
    """Write the table, a line a preset."""
    counts = {name: count_multiply_adds(name) for name in sorted(MODELS) if MODELS[name].module.counted_from_shapes}
    TABLE.write_text(json.dumps(counts, indent=0) + "\n")
    say(f"{len(counts)} presets in {TABLE}")


if __name__ == "__main__":
    main()
