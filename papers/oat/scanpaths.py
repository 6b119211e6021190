"""OAT trained on the paths of a rule: its behaviour and the likeness of its paths, on the trained and on new layouts.

Each network takes the same steps of Adam. A second path that the rule makes for the same scene shows how alike two of
its paths are: a network that knew the rule would reach that.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

import mereo
from mereo.data import Batch
from mereo.data.scanpaths import BEHAVIOUR
from mereo.data.shelves import Layout, Shelves, make_shelves, walk
from mereo.inference.evaluate import evaluate
from mereo.tasks import Scanpaths
from mereo.tasks.scanpaths import Scanned, ScanpathsObjective, fixations_of
from mereo.tasks.shelf_pictures import draw_shelves
from papers.common.fitting import follow
from papers.common.settings import Settings

STEPS, BATCH, RATE, SCENES, TESTED = 1000, 50, 3e-3, 20_000, 150
SAMPLES, FEWER, SHOWN = 100, 5, 4
"""Sampled paths of a scene, of one on a new layout, and scenes of the picture."""
LAYOUTS = {"4 x 5": Layout(4, 5), "3 x 6": Layout(3, 6), "5 x 4": Layout(5, 4), "4 x 5 with gaps": Layout(4, 5, 8)}
VERSIONS = {"located": True, "unlocated": False}
SCANPATHS = "scanpaths_{}.png"
SCORES = ("delta", "ss", "ed", "sim", *(f"multimatch_{name}" for name in ("vector", "direction", "length", "position")))


def run(settings: Settings) -> dict[str, Any]:
    """Tables of behaviours, of scores and of new layouts, and a picture of scanpaths over shelves."""
    device, rows, farther = settings.device or "cpu", list[dict[str, Any]](), list[dict[str, Any]]()
    count = settings.images or TESTED
    tests = {name: make_shelves(layout, count, 1000).to(device) for name, layout in LAYOUTS.items()}
    first = next(iter(tests))
    for name, test in tests.items():
        again = {"network": "the rule again", **_by_rule(test, LAYOUTS[name])}
        farther.append({"layout": name, **_scores(again)})
        if name == first:
            rows.append({"network": "random objects", **_random(test)})
            rows.append(again)
    pictures = list[str]()
    for version in settings.chosen(VERSIONS):
        for seed in range(settings.seeds):
            settings.say(f"{version}, seed {seed}")
            model = trained(settings, version, seed, device)
            if seed == 0:
                pictures.append(SCANPATHS.format(version))
                _draw(model, version, tests[first], settings.folder / pictures[-1])
            for name, test in tests.items():
                figures = _figures(model, test, SAMPLES if name == first else FEWER)
                farther.append({"layout": name, "network": f"{version}, seed {seed}", **_scores(figures, name=False)})
                if name == first:
                    rows.append({"network": f"{version}, seed {seed}", **figures})
                    rows.append({"network": f"{version}, seed {seed}, most probable", **_figures(model, test, 0)})
    made: dict[str, list[dict[str, Any]]] = {
        "Behaviour, and how far it is from that of the rule": [
            {"network": row["network"], **{each: row[each] for each in (*BEHAVIOUR, "delta")}} for row in rows
        ],
        "Likeness of paths": [{"network": row["network"], **{each: row[each] for each in SCORES[1:]}} for row in rows],
        "Layouts": [{"layout and network": f"{row.pop('layout')}: {row.pop('network')}", **row} for row in farther],
    }
    people = {"network": "the rule", **{each: rows[0][f"human_{each}"] for each in BEHAVIOUR}, "delta": 0.0}
    made["Behaviour, and how far it is from that of the rule"].insert(0, people)
    return {
        "tables": made, "notes": [f"{SAMPLES} paths are sampled for each of {count} scenes, {FEWER} on new layouts"],
        "pictures": pictures,
    }  # fmt: skip


def _scores(figures: dict[str, Any], *, name: bool = True) -> dict[str, Any]:
    kept = ("delta", "ss", "ed", "sim", "correct", "length")
    return {**({"network": figures["network"]} if name else {}), **{each: figures[each] for each in kept}}


def trained(settings: Settings, version: str, seed: int, device: str) -> Any:
    """A network after its steps, from its file if there is one; scenes, order and start are those of the seed."""
    file = settings.folder / f"{version}-{seed}-{STEPS}.safetensors"
    if file.is_file():
        return mereo.load(file).to(device).eval()
    torch.manual_seed(seed)
    model: Any = mereo.create_model("oat_small", shelf=(6, 6), locate=VERSIONS[version], dropout=0.0).to(device)
    train = make_shelves(LAYOUTS["4 x 5"], settings.limit or SCENES, seed).to(device)
    objective, generator = ScanpathsObjective(model).train(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam((each for each in model.parameters() if each.requires_grad), RATE, fused=True)
    schedule = OneCycleLR(optimiser, RATE, total_steps=STEPS, pct_start=0.1)
    losses = list[float]()
    for step in range(STEPS):
        places = torch.randint(len(train), (settings.batch_size or BATCH,), generator=generator)
        loss, _ = objective(train.batch(places))
        follow(schedule, loss, clip=1.0)
        losses.append(loss.item())
        if step % 200 == 199:
            settings.say(f"step {step + 1}, loss {sum(losses[-200:]) / 200:.3f}")
    mereo.save_weights(file, model)
    return model.eval()


def _figures(model: Any, test: Shelves, samples: int) -> dict[str, float]:
    return evaluate(model, test, task=Scanpaths((), {"samples": samples}), batch_size=50).values


def _compared(test: Shelves, paths: Tensor, shares: Tensor) -> dict[str, float]:
    """The metrics of other paths, with given probabilities of each object at each step."""
    batch, metrics = test.batch(torch.arange(len(test)), device="cpu"), Scanpaths().metrics()
    assert batch.pointers is not None
    steps = batch.pointers.shape[1]
    log_shares = shares.log().unsqueeze(1).expand(-1, steps, -1)
    metrics.update(Scanned(log_shares, paths, paths.unsqueeze(1)), batch)
    return metrics.compute()


def _uniform(batch: Batch) -> Tensor:
    """The same probability for every object that is there, and for STOP."""
    assert batch.regions is not None
    there = (batch.regions[..., -2] >= 0).float()
    return there / there.sum(1, keepdim=True)


def _random(test: Shelves) -> dict[str, float]:
    """Objects drawn evenly, in paths as long as the rule's."""
    batch, generator = test.batch(torch.arange(len(test)), device="cpu"), torch.Generator().manual_seed(0)
    assert batch.pointers is not None and batch.regions is not None
    shares, true = _uniform(batch), fixations_of(batch.pointers)
    drawn = torch.multinomial(shares[:, :-1], true.shape[1], replacement=True, generator=generator)
    return _compared(test, drawn.masked_fill(true < 0, -1), shares)


def _by_rule(test: Shelves, layout: Layout) -> dict[str, Any]:
    """Another path of the rule for each scene; SIM is not known."""
    batch = test.batch(torch.arange(len(test)), device="cpu")
    assert batch.regions is not None
    paths = walk(test.kinds.cpu(), test.places.cpu(), layout.centre, torch.Generator().manual_seed(2000))
    return {**_compared(test, paths, _uniform(batch)), "sim": None}


def _draw(model: Any, version: str, test: Shelves, path: Path) -> None:
    """Some scenes with the rule's path, and the most probable and a sampled path of a network."""
    batch = test.batch(torch.arange(min(SHOWN, len(test))))
    assert batch.regions is not None and batch.pointers is not None
    torch.manual_seed(0)
    with torch.no_grad():
        shelf = model.forward_features(batch.regions)
        found = [model.search(shelf, sample=sample).fixations[:, 0] for sample in (False, True)]
    names = "the rule", f"OAT {version}, most probable", f"OAT {version}, sampled"
    answers = dict(zip(names, (fixations_of(batch.pointers), *found), strict=True))
    titles = [f"scene {place}" for place in range(len(batch.regions))]
    draw_shelves(batch.regions, (16, 16), answers, titles, path, across=2 * len(answers))
