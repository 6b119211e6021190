"""Scenes read with and without index feedback, moments recalled after one look, and sentences that are imagined.

Every network takes the steps of Adam of one protocol on scenes that are drawn anew for each step. The joint of semantic
memory is compared with the table it was trained on, with tensor models beside it.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.data import Batch, load_splits
from mereo.data.regions import World, concept_names
from mereo.generative.triple_tensor import KINDS, TripleTensor
from mereo.pictures import new_figure, save_figure
from mereo.tasks.scene_pictures import Word, draw_scenes
from mereo.training.step import descend
from papers.common.settings import Settings

STEPS, BATCH, RATE, NOISE, FEATURES = 3000, 128, 3e-3, 1.5, 24
SIZES = (12, 5, 0, 0)
NOISES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
PICTURES, PICTURE_STEPS, SHOWN = 20000, 1500, 18
TABLE, TABLE_STEPS, TABLE_RATE, RANK, IMAGINED = (4, 3, 4), 600, 0.02, 4, 20000
TESTED = 2000
SENTENCES, JOINT = "sentences.png", "joint.png"
PARTS = ("subject", "predicate", "object")


def run(settings: Settings) -> dict[str, Any]:
    """Tables of accuracies, of recall and of the joint of imagined sentences, and a picture of scenes and joints."""
    made: dict[str, Any] = {"tables": {}, "notes": [], "pictures": []}
    works = {"scenes": _scenes, "pictures": _pictures, "joint": _joint}
    for part in settings.chosen(works):
        works[part](settings, made)
    return made


def _descend(model: Any, batches: Any, steps: int) -> None:
    """Steps of Adam on the sentences of scenes, each concept given the true ones before it."""
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(steps):
        regions, labels = next(batches)
        descend(optimiser, RATE, -model.decode(regions, "teacher", labels).log_probability.mean())


def _drawn(world: World, seed: int, count: int) -> Any:
    generator, names = torch.Generator().manual_seed(seed), concept_names(SIZES)
    while True:
        scenes = world.scenes(count, generator, names, classes=0)
        yield scenes.regions, scenes.labels


def _correct(model: Any, regions: Tensor, labels: Tensor, feedback: bool | None = None) -> dict[str, float]:
    """The share of correct subjects, predicates, objects and whole triples by the network's own decisions."""
    with torch.no_grad():
        right = model.decode(regions, feedback=feedback).chosen == labels
    shares = right.double().mean(0).tolist()
    return {**dict(zip(PARTS, shares, strict=True)), "triple": right.all(1).double().mean().item()}


def _scenes(settings: Settings, made: dict[str, Any]) -> None:
    rows, recalled, noisy = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for seed in range(settings.seeds):
        world = World.made(SIZES, FEATURES, NOISE, seed)
        regions, labels = next(_drawn(world, 2 * seed + 1, settings.images or TESTED))
        for feedback in (True, False):
            settings.say(f"seed {seed}, {'with' if feedback else 'without'} feedback")
            torch.manual_seed(seed)
            model: Any = mereo.create_model("tensor_brain", feedback=feedback)
            _descend(model, _drawn(world, 2 * seed + 2, BATCH), STEPS)
            name = f"seed {seed}, {'with' if feedback else 'without'} feedback"
            rows.append({"network": name, **_correct(model, regions, labels)})
            if not feedback:
                continue
            name = f"seed {seed}, trained with feedback, read without"
            rows.append({"network": name, **_correct(model, regions, labels, feedback=False)})
            recalled.append({"network": f"seed {seed}", **_recalled(model, regions)})
            if seed == 0:
                for noise in NOISES:
                    seen = next(_drawn(world._replace(noise=noise), 99, len(labels)))
                    noisy.append({"noise": f"{noise:g}", **_correct(model, *seen)})
    made["tables"] |= {"Accuracy by index feedback": rows, "Recall after one look": recalled}
    made["tables"]["Accuracy by noise, seed 0"] = noisy


def _recalled(model: Any, regions: Tensor) -> dict[str, Any]:
    """Fill the episodic memory with scenes, and compare what is recalled with what was perceived."""
    shown = regions[: len(model.moments)]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        seen = model.decode(shown)
        found = model.recall(model.remember(shown))
    changed = [n for n, t in model.state_dict().items() if n not in ("moments", "stored") and not t.equal(before[n])]
    return {
        "moments": len(shown),
        "equal sentences": (seen.chosen == found.chosen).all(1).double().mean().item(),
        "largest difference": (seen.log_shares - found.log_shares).abs().max().item(),
        "other parameters changed": len(changed),
    }


# --- pictures -------------------------------------------------------------------------------------------------------


def _pictures(settings: Settings, made: dict[str, Any]) -> None:
    """Pictures of two digits, with and without feedback, and some of them drawn."""
    splits = load_splits(f"picture_relations:train={PICTURES}", length=3)
    count = min(settings.images or TESTED, len(splits.test))
    test = splits.test.batch(torch.arange(count))
    assert test.regions is not None
    rows = []
    for feedback in (True, False):
        settings.say(f"pictures, {'with' if feedback else 'without'} feedback")
        torch.manual_seed(0)
        model: Any = mereo.create_model("tensor_brain_pictures", feedback=feedback)
        _descend(model, _shuffled(splits.train), PICTURE_STEPS)
        rows.append(
            {"network": f"{'with' if feedback else 'without'} feedback", **_correct(model, test.regions, test.labels)}
        )
        if feedback:
            _draw(model, test.pick(slice(0, SHOWN)), splits.class_names, settings.folder / SENTENCES)
    made["tables"]["Pictures of two digits"] = rows
    made["pictures"].append(SENTENCES)


def _shuffled(train: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    while True:
        batch = train.batch(torch.randint(len(train), (BATCH,), generator=generator))
        yield batch.regions, batch.labels


def _draw(model: Any, batch: Batch, names: tuple[str, ...], path: Path) -> None:
    assert batch.regions is not None
    with torch.no_grad():
        made = model.decode(batch.regions)
    shares = made.log_shares.gather(-1, made.chosen.unsqueeze(-1)).squeeze(-1).exp()
    rows = zip(made.chosen.tolist(), shares.tolist(), batch.labels.tolist(), strict=True)
    words = [[Word(names[k], share, names[true]) for k, share, true in zip(*row, strict=True)] for row in rows]
    draw_scenes(batch.regions, words, path, side=8)


# --- the joint ------------------------------------------------------------------------------------------------------


def _chi_square(counts: Tensor, shares: Tensor) -> tuple[float, float]:
    """The statistic, and the probability of a larger one if the counts follow the shares."""
    expected = counts.sum() * shares
    value = ((counts - expected).square() / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return value.item(), torch.special.gammaincc(freedom, value / 2).item()


def _joint(settings: Settings, made: dict[str, Any]) -> None:
    """Models of one table of triples: how far their joint is from it, and whether samples follow the joint."""
    entities, predicates, _ = TABLE
    every = torch.cartesian_prod(*map(torch.arange, TABLE))
    concepts = every + torch.tensor([0, entities, 0])
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(len(every), generator=generator, dtype=torch.float64).mul(1.2).softmax(0)
    torch.manual_seed(0)
    brain = mereo.create_model("tensor_brain", entities=entities, predicates=predicates).double()
    models: dict[str, tuple[Any, Tensor]] = {"Tensor Brain, semantic memory": (brain, concepts)}
    for kind in KINDS:
        models[kind] = TripleTensor(entities, predicates, RANK, kind).double(), every
    rows, joints = [], {"table": table}
    for name, (model, triples) in models.items():
        settings.say(f"joint: {name}")
        optimiser = torch.optim.Adam(model.parameters(), TABLE_RATE)
        for _ in range(TABLE_STEPS):
            descend(optimiser, TABLE_RATE, -(table * model.log_prior(triples)).sum())
        with torch.no_grad():
            joints[name] = joint = model.log_prior(triples).exp()
            if name.startswith("Tensor"):
                drawn = model.imagine(IMAGINED, generator=generator).chosen - torch.tensor([0, entities, 0])
                places = (drawn[:, 0] * predicates + drawn[:, 1]) * entities + drawn[:, 2]
            else:
                places = torch.multinomial(joint, IMAGINED, replacement=True, generator=generator)
        counts = torch.bincount(places, minlength=len(every)).double()
        statistic, chance = _chi_square(counts, joint)
        rows.append(
            {
                "model": name, "numbers": sum(_used(n, p) for n, p in model.named_parameters()),
                "divergence": (table * (table / joint).log()).sum().item(),
                "chi-square": statistic, "probability of more": chance,
            }
        )  # fmt: skip
        if name.startswith("Tensor"):
            joints["imagined"] = counts / counts.sum()
    made["tables"]["The joint of 4 x 3 x 4 triples"] = rows
    made["notes"].append(f"chi-square of {IMAGINED:,} samples against the joint of the model, 47 degrees of freedom")
    _draw_joints(joints, settings.folder / JOINT)
    made["pictures"].append(JOINT)


def _used(name: str, parameter: Tensor) -> int:
    """The size of a parameter that takes part in semantic memory; senses do not."""
    return 0 if name.startswith("sense") else parameter.numel()


def _draw_joints(joints: dict[str, Tensor], path: Path) -> None:
    """Each joint as a row for each subject, and a column for each predicate and object."""
    figure = new_figure(2.1 * len(joints), 2.0)
    panels = figure.subplots(1, len(joints))
    most = max(float(joint.max()) for joint in joints.values())
    for axes, (name, joint) in zip(panels, joints.items(), strict=True):
        image = joint.view(TABLE[0], -1).numpy()
        shown = axes.imshow(image, cmap="viridis", vmin=0, vmax=most)
        axes.set_title(name.replace(", ", ",\n"), fontsize=8)
        for edge in range(1, TABLE[1]):
            axes.axvline(edge * TABLE[2] - 0.5, color="white", lw=1)
        axes.set_xticks([TABLE[2] * p + 1.5 for p in range(TABLE[1])], [f"p{p}" for p in range(TABLE[1])], fontsize=7)
        axes.set_yticks(range(TABLE[0]), [f"s{s}" for s in range(TABLE[0])], fontsize=7)
    figure.colorbar(shown, ax=list(panels), shrink=0.7)
    save_figure(figure, path)
