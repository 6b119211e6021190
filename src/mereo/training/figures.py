"""Reads results.json of a finished run. The file may come from anywhere, so values of the wrong type are refused."""

import json
from pathlib import Path
from typing import Any

from mereo.errors import UsageError
from mereo.escape import cut
from mereo.files import read_regular
from mereo.models.metadata import check_kinds, check_scores

LONGEST = 2**24
"""Bytes of a results.json."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "parameters": int, "chosen_on": str, "best_epoch": int, "train_images": int, "device": str, "torch": str,
    "seconds": (int, float), "images_per_second": (int, float),
}  # fmt: skip


def read_results(path: Path, task: str = "classification") -> dict[str, Any]:
    """The results of a run of a task; UsageError for a file that is not what a run writes."""
    try:
        results = json.loads(read_regular(path, LONGEST))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a valid results.json ({cut(str(error), 200)}); remove it to train again."
        ) from error
    check_kinds(results, _KINDS, str(path))
    for name in ("test_best", "test_last"):
        check_scores(results.get(name), task, f"{name} in {path}")
    return dict(results)
