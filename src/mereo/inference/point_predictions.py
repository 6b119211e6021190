"""Predictions of a network that reads points or regions: for files, and for arrays in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mereo.data import Images
from mereo.data.point_files import NamedSets, in_unit_square, read_sets
from mereo.data.pointing import check_points, check_problem
from mereo.data.points import PointSets
from mereo.errors import UsageError, type_of
from mereo.inference.evaluate import batches
from mereo.inference.mode import evaluating
from mereo.inference.predict import Prediction, describe_outputs, task_of
from mereo.inference.write_predictions import Written, joined, unique_names, write_outputs
from mereo.models import VisionModel


def sets_of(points: Any) -> NamedSets:
    """The sets of paths of files, of an array (n, 2) or (sets, n, 2), or of a list of these."""
    if isinstance(points, str | Path):
        return read_sets(Path(points))
    if isinstance(points, np.ndarray | Tensor):
        values = np.asarray(points, np.float64)
        if values.ndim not in (2, 3) or not values.size:
            raise UsageError(f"points are {values.shape}; they must be (n, 2) or (sets, n, 2), at least one in a set.")
        sets = [values] if values.ndim == 2 else list(values)
        for each in sets:
            check_points(each)
        return NamedSets([f"set{number}" for number in range(len(sets))], [in_unit_square(each) for each in sets], None)
    if not isinstance(points, Sequence) or not points:
        raise UsageError(f"points are {type_of(points)}; give files of points, arrays (n, 2), or a list of them.")
    found = [sets_of(each) for each in points]
    names = unique_names([Path(name) for part in found for name in part.names])
    return NamedSets(names, [each for part in found for each in part.sets], None)


@torch.inference_mode()
def predict_sets(
    model: VisionModel,
    names: Sequence[str],
    split: Images,
    folder: Path | None = None,
    *,
    top: int = 3,
    batch_size: int = 64,
) -> Written:
    """Predict sets of points or regions, and write what the task writes, if there is a folder.

    Args:
        model: whose weights name the task that it was trained for.
        names: of the sets.
        split: the sets, without labels.
        folder: of the predictions, made if it does not exist.
        top: as in `mereo.inference.predict.predict`.
        batch_size: sets at a time.

    Raises:
        UsageError: for points on a line, or fewer than three, of which hulls or triangles are wanted.
    """
    task, device = task_of(model), next(model.parameters()).device
    if isinstance(split, PointSets):
        for name, points, length in zip(names, split.points, split.lengths.tolist(), strict=True):
            try:
                check_problem(points[:length].double().numpy(), task.options.problem)
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from error
    with evaluating(model):
        kept = [
            tree_map_only(Tensor, Tensor.cpu, task.kept(task.apply(model, batch)))
            for batch in batches(split, batch_size, device)
        ]
        outputs = joined(kept)
        rows = describe_outputs(model, outputs, top)
        predictions = [Prediction(Path(name), values) for name, values in zip(names, rows, strict=True)]
        if folder is None:
            return Written(predictions, [])
        drawn = split.batch(torch.arange(min(len(split), task.most_drawn)), device=device)
        files = write_outputs(model, outputs, predictions, names, [], drawn, folder)
    return Written(predictions, files)
