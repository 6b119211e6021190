"""Couplings of networks that point: the share of every point or object, and of the end, at each step of a search."""

from pathlib import Path
from typing import Any

import torch

from mereo.core import record
from mereo.data.point_files import NamedSets
from mereo.data.pointing import counts_of
from mereo.data.regions import NamedScenes
from mereo.data.shelves import check_scenes
from mereo.errors import UsageError
from mereo.inference.mode import evaluating
from mereo.inference.predict import task_of
from mereo.pictures import grid_of_panels, save_figure
from mereo.tasks.point_pictures import COLOURS, draw_cycles
from mereo.tasks.shelf_pictures import draw_shelf

MOST_SETS, ACROSS = 12, 4
"""Sets on a picture, and panels in a row: two for each set."""


def draw_pointers(model: Any, sets: NamedSets, path: Path) -> Path:
    """Two panels for each set: its points with the answer found, and the couplings, a row for each step.

    Points are numbered from 0, as in files; the first column is the end. At most 12 sets are drawn.

    Raises:
        UsageError: for a network without couplings.
    """
    task, count = task_of(model), min(len(sets.names), MOST_SETS)
    batch = sets._replace(pointers=None).as_split().batch(torch.arange(count), device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad(), record(model) as trace:
        memory = model.forward_features(batch.points, batch.lengths)
        chosen = model.search(memory, constraint=getattr(task, "constraint", None))[0].cpu()
    names = [name for name, kind in trace.kinds.items() if kind == "couplings"]
    if not names:
        raise UsageError(f"model is a {type(model).__name__} without couplings; explain one with attention.")
    couplings = torch.cat([step[:, 0] for step in trace.steps(names[-1])], 1).float().cpu()
    assert batch.points is not None and batch.lengths is not None
    figure, (panels,) = grid_of_panels(2 * count, min(ACROSS, 2 * count), (2.2, 2.2))
    for place, (length, steps) in enumerate(zip(batch.lengths.tolist(), counts_of(chosen).tolist(), strict=True)):
        left, right = panels[2 * place : 2 * place + 2]
        points, pointers = batch.points[place, :length].cpu(), chosen[place, :steps] - 1
        by_three = getattr(task.options, "problem", "") == "triangles"
        draw_cycles(left, points, pointers, 3 if by_three else steps, COLOURS[1], 1.2)
        for number, (across, up) in enumerate(points.tolist()):
            left.text(across, up, str(number), fontsize=7, ha="center", va="center", bbox={"fc": "white", "pad": 0.6})
        left.set_title(sets.names[place], fontsize=7)
        left.set_aspect("equal", "datalim")
        left.set_xticks([])
        left.set_yticks([])
        right.imshow(couplings[place, : steps + 1, : length + 1], vmin=0, vmax=1, aspect="auto")
        right.set_xticks(range(length + 1), ["end", *map(str, range(length))], fontsize=6)
        right.set_yticks(range(steps + 1), [str(step + 1) for step in range(steps + 1)], fontsize=6)
        right.set_title(f"{names[-1]}, by step", fontsize=7)
    save_figure(figure, path)
    return path


def draw_gazes(model: Any, scenes: NamedScenes, path: Path) -> Path:
    """Two panels for each scene: its shelf with the most probable scanpath, and the couplings, a row for each step.

    Objects are numbered from 0, as in files; the last column is the end. At most 12 scenes are drawn.
    """
    count = min(len(scenes.names), MOST_SETS)
    regions = scenes.regions[:count].to(next(model.parameters()))
    check_scenes(regions)
    with evaluating(model), torch.no_grad():
        shelf = model.forward_features(regions)
        chosen = model.search(shelf).fixations[:, 0]
        with record(model) as trace:
            model.score(shelf, chosen)
    couplings = trace.steps("head.coupling")[-1][:, 0].float().cpu()
    figure, (panels,) = grid_of_panels(2 * count, min(ACROSS, 2 * count), (2.6, 2.2))
    for place, fixations in enumerate(chosen.tolist()):
        left, right = panels[2 * place : 2 * place + 2]
        draw_shelf(left, regions[place], model.crop, fixations)
        left.autoscale_view()
        left.set_title(scenes.names[place], fontsize=7)
        steps, objects = sum(each >= 0 for each in fixations), regions.shape[1] - 1
        right.imshow(couplings[place, : steps + 1], vmin=0, vmax=1, aspect="auto")
        marks = range(0, objects, max(objects // 8, 1))
        right.set_xticks([*marks, objects], [*map(str, marks), "end"], fontsize=6)
        right.set_yticks(range(steps + 1), [str(step + 1) for step in range(steps + 1)], fontsize=6)
        right.set_title("head.coupling, by step", fontsize=7)
    save_figure(figure, path)
    return path
