"""Pointer networks compared with LSTMs of the same size on convex hulls, and their tours with the shortest ones.

Three networks learn hulls of 5 to 10 points: a pointer network, an LSTM with attention and one without. Another learns
tours of 5 to 20 points, another the triangles of five.
"""

from typing import Any

from mereo.data.pointing import length_of, shortest_tours
from mereo.data.points import PointSets, make_sets
from mereo.data.sets import convex_hull, delaunay, tours
from mereo.inference.evaluate import evaluate
from mereo.tasks import Pointers
from mereo.training.config import TrainConfig
from mereo.training.trainer import train
from papers.common.pictures import draw_curves
from papers.common.settings import Settings

DIMS, SPREADS = {"hull": 64, "tour": 128, "triangles": 64}, {"hull": 0.3, "tour": 0.2, "triangles": 0.3}
RATES, BATCH = {"hull": 5e-3, "tour": 3e-3, "triangles": 5e-3}, 64
HULL_POINTS, FARTHER = (5, 6, 7, 8, 9, 10), (15, 20)
TOUR_POINTS, TOURS_FARTHER, MOST_EXACT = (5, 10, 15, 20), (25, 30), 16
SETS, EPOCHS = 60_000, {"hull": 16, "tour": 24, "triangles": 16}
ORDER = "angle"
"""Cities are read counter-clockwise around their mean, from which networks learn sooner than from a drawn order."""
TESTED, BEAM, SEED = 500, 4, 100
PARTS = ("hull", "tour", "triangles")
KINDS = {"pointer": "Ptr-Net", "blend": "LSTM + attention", "none": "LSTM"}
HULLS, TOURS = "hulls.png", "tours.png"


def run(settings: Settings) -> dict[str, Any]:
    """Tables of hulls, tours and triangles by numbers of points, and pictures of the first two."""
    parts = settings.chosen(PARTS)
    made: dict[str, Any] = {"tables": {}, "notes": [], "pictures": []}
    for part, work in zip(PARTS, (_hulls, _tours, _triangles), strict=True):
        if part in parts:
            work(settings, made)
    return made


def _trained(settings: Settings, problem: str, data: str, attention: str, most: int) -> Any:
    """A network that was trained by the trainer."""
    arguments = {"dim": DIMS[problem], "embed": True, "spread": SPREADS[problem], "attention": attention, "most": most}
    if problem == "triangles":
        arguments["steps_per_point"] = 4
    config = TrainConfig(
        model="pointer_network", task="pointers", data=data, epochs=settings.epochs or EPOCHS[problem],
        model_args={**arguments, "context": 5},
        batch_size=settings.batch_size or BATCH, lr=RATES[problem], clip_norm=2.0, device=settings.device or "cpu",
        limit=settings.limit, tensorboard=False, output=str(settings.folder / "runs"), name=f"{problem}-{attention}",
        resume=True,
    )  # fmt: skip
    settings.say(f"{problem}: {KINDS[attention]}")
    return train(config, pictures=False).model


def _tested(settings: Settings, problem: str, answers: Any, number: int, order: str = "drawn") -> PointSets:
    return make_sets(problem, answers, number, number, SEED + number, settings.images or TESTED, order)


def _figures(model: Any, split: PointSets, problem: str, beam: int = 1) -> dict[str, float]:
    return evaluate(model, split, task=Pointers((), {"problem": problem, "beam": beam})).values


def _hulls(settings: Settings, made: dict[str, Any]) -> None:
    data = f"convex_hull:least={HULL_POINTS[0]},most={HULL_POINTS[-1]},train={SETS}"
    rows, curves = [], dict[str, dict[int, float]]()
    for attention, name in KINDS.items():
        model = _trained(settings, "hull", data, attention, HULL_POINTS[-1])
        numbers = (*HULL_POINTS, *FARTHER) if attention == "pointer" else HULL_POINTS
        curves[name] = {}
        for number in numbers:
            found = _figures(model, _tested(settings, "hull", convex_hull.answers, number), "hull")
            curves[name][number] = found["accuracy"]
            area = "FAIL" if found["invalid"] > 0.01 else f"{100 * found['area_covered']:.1f}%"
            rows.append(
                {
                    "network": name, "points": number, "accuracy": found["accuracy"], "area": area,
                    "area of simple polygons": found["area_covered"], "not simple": found["invalid"],
                }
            )  # fmt: skip
    made["tables"]["Convex hulls, trained on 5 to 10 points"] = rows
    made["notes"].append("area is FAIL where more than 1 % of the outputs are not simple polygons, as in the paper.")
    draw_curves(curves, "points", "accuracy", settings.folder / HULLS)
    made["pictures"].append(HULLS)


def _optimum(split: PointSets, number: int) -> float | None:
    """The mean length of the shortest tours, if they can be found in reasonable time."""
    if number > MOST_EXACT:
        return None
    return length_of(split.points.double(), shortest_tours(split.points)).mean().item()


def _tours(settings: Settings, made: dict[str, Any]) -> None:
    data = f"tours:least={TOUR_POINTS[0]},most={TOUR_POINTS[-1]},order={ORDER},train={SETS}"
    model = _trained(settings, "tour", data, "pointer", TOUR_POINTS[-1])
    rows, curves = [], dict[str, dict[int, float]]()
    for number in (*TOUR_POINTS, *TOURS_FARTHER):
        split = _tested(settings, "tour", tours.answers, number, ORDER)
        best = _optimum(split, number)
        assert split.pointers is not None
        known = length_of(split.points.double(), split.pointers).mean().item()
        improved = known if number > tours.MOST_EXACT else None
        row: dict[str, Any] = {"points": number, "shortest": best, "2-opt": improved}
        for name, beam in (("greedy", 1), (f"beam {BEAM}", BEAM)):
            row[name] = _figures(model, split, "tour", beam)["tour_length"]
            row[f"{name} over"] = row[name] / (best or known) - 1
            curves.setdefault(name, {})[number] = row[f"{name} over"]
        rows.append(row)
    made["tables"]["Mean length of tours, trained on 5 to 20 points"] = rows
    made["notes"].append("'over' is how much longer tours are than the shortest ones, or else than 2-opt's.")
    draw_curves(curves, "points", "longer than the shortest or 2-opt", settings.folder / TOURS)
    made["pictures"].append(TOURS)


def _triangles(settings: Settings, made: dict[str, Any]) -> None:
    model = _trained(settings, "triangles", f"delaunay:order={ORDER},train={SETS}", "pointer", 5)
    found = _figures(model, _tested(settings, "triangles", delaunay.answers, 5, ORDER), "triangles")
    row = {"points": 5, "accuracy": found["accuracy"], "triangles found": found["triangles_found"]}
    made["tables"]["Delaunay triangulations, trained on 5 points"] = [row]
