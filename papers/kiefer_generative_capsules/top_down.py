"""Top-down attention on two overlaid digits: do the two parents divide the parts between them?

A narrow CapsNet learns to predict both digits of an overlay. Then it is frozen, and the transforms of top-down
attention learn to predict the primary capsules from the class capsules, by the likelihood of a mixture of the two. The
true digit of a part is the one with more ink in the middle of its field; it is never used in training.
"""

import math
from typing import Any

import torch
from torch import Tensor

from mereo.core import lengths, record
from mereo.data import Batch, OverlaidPairs
from mereo.data.images import Images, ImageSet
from mereo.errors import UsageError
from mereo.generative import CapsuleMixture
from mereo.mechanisms.attention import TopDownAttention
from mereo.models.capsule.capsnet import CapsNet
from mereo.tasks.losses import many_hot, margin_loss
from papers.common.fitting import batches, fit
from papers.common.pictures import draw_curves
from papers.common.settings import Settings
from papers.kiefer_generative_capsules.top_down_pictures import Shown, draw_assignments

ITERATIONS, IMAGES, SHOWN = 10, 512, 5
FIELD, MIDDLE, STEP = 17, 9, 2
"""The field of a primary capsule of CapsNet is 17x17 pixels, 2 apart; the 9x9 in the middle decide its true digit."""
BETAS = {"1/sqrt(d)": None, "1": 1.0, "16": 16.0}
EPOCHS = {"digits": 30}
PICTURES = ("assignments.png", "entropy.png")
NOTES = [
    "Right: share of parts assigned to the digit with more ink in the middle of their field, where there is a"
    " difference; chance is 50 %. Weighted: each part counts by its length.",
    "Entropy: of a part's couplings over the two predicted digits; 1 is an even division.",
    "Routing: the couplings of the network's own dynamic routing, restricted to the two digits.",
]


def run(settings: Settings) -> dict[str, Any]:
    """Train, then assign the parts of test overlays to the two predicted digits."""
    device, data = settings.chosen_device(), str(settings.data)
    epochs, size = settings.epochs or EPOCHS.get(data, 3), settings.batch_size or 64
    train, test, names = _overlays(settings, data)
    torch.manual_seed(0)
    channels, side, _ = train.image_shape
    model = CapsNet(len(names), channels, side, conv_channels=64, primary_types=8, decoder=False).to(device)
    how: dict[str, Any] = {"batch_size": size, "device": device, "say": settings.say}

    def classify(batch: Batch) -> Tensor:
        return margin_loss(model(batch.images), many_hot(batch.labels, len(names)))

    fit(classify, model.parameters(), train, epochs=epochs, lr=1e-3, title="network", **how)
    model.eval().requires_grad_(False)
    decoder = TopDownAttention(model.senders, len(names), model.primary.dim, model.class_dim).to(device)
    log_sigma = torch.full((), -1.5, device=device, requires_grad=True)

    def explain(batch: Batch) -> Tensor:
        parts, parents, named = _predict(model, batch.images)
        absent = torch.zeros(named.shape, device=device).masked_fill(~named, -torch.inf)
        mixture = CapsuleMixture(
            decoder.predictions(parents), log_sigma.exp(), 0.0, absent.unsqueeze(1), mixing="constant"
        )
        return -mixture.log_prob(parts).mean()

    fit(explain, [*decoder.parameters(), log_sigma], train, epochs=epochs, lr=3e-3, title="top-down", **how)
    return _measure(model, decoder, test, size, device, settings)


def _overlays(settings: Settings, data: str) -> tuple[OverlaidPairs, Images, tuple[str, ...]]:
    splits = settings.splits(28, 10000, in_chans=1)
    train, test = splits.train, splits.test
    if not (isinstance(train, ImageSet) and isinstance(test, ImageSet)):
        raise UsageError(f"data is {data!r}, whose images hold several objects already; give a set of single ones.")
    overlaid = OverlaidPairs(test)
    count = min(settings.images or IMAGES, len(overlaid))
    return OverlaidPairs(train), overlaid.subset(torch.arange(count)), splits.train.class_names


def _predict(model: CapsNet, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Parts (batch, parts, d), class capsules (batch, classes, e), and which two are the longest, bool."""
    with torch.no_grad():
        parts = model.forward_features(images)
        parents = model.route(parts)
        longest = lengths(parents).topk(2, 1).indices
    return parts, parents, many_hot(longest, parents.shape[1]).bool()


def _measure(
    model: CapsNet, decoder: TopDownAttention, test: Images, size: int, device: torch.device, settings: Settings
) -> dict[str, Any]:
    variants = {(name, kept): beta for name, beta in BETAS.items() for kept in (False, True)}
    entropy: dict[tuple[str, bool], Tensor] = {key: torch.zeros(ITERATIONS) for key in variants}
    right = {key: torch.zeros(ITERATIONS, 2) for key in [*variants, ("routing", False)]}
    weight, both, images, shown = torch.zeros(2), 0, 0, None
    with torch.no_grad():
        for batch in batches(test, size, device):
            with record(model) as trace:
                parts, parents, named = _predict(model, batch.images)
            truth, known = _truth(batch, model, named)
            weights = torch.stack([known.float(), known * lengths(parts)])
            weight += weights.sum((1, 2)).cpu()
            both += int((named == many_hot(batch.labels, named.shape[1]).bool()).all(1).sum())
            images += len(parts)
            steps: dict[Any, list[Tensor]] = {}
            for key, beta in variants.items():
                steps[key] = [_pair(c, named) for c in _iterate(decoder, parts, parents, named, beta, key[1])]
                entropy[key] += torch.stack([_entropy(w).sum() for w in steps[key]]).cpu() / parts.shape[1]
            steps["routing", False] = [_pair(trace["head.coupling"].squeeze(1).mT, named)] * ITERATIONS
            for key, shares in steps.items():
                hits = torch.stack([(w[..., 0] > 0.5) == truth for w in shares])
                right[key] += torch.einsum("kbm,wbm->kw", hits.float(), weights).cpu()
            if shown is None:
                shown = _shown(batch, parts, named, steps, model.grid)
    curves = {key: (value / images).tolist() for key, value in entropy.items()}
    assert shown is not None
    draw_assignments(shown, settings.folder / PICTURES[0])
    steps_of = {_title(key): dict(enumerate(value, 1)) for key, value in curves.items()}
    dashed = {_title(key): {"linestyle": "--"} for key in curves if key[1]}
    draw_curves(
        steps_of, "iteration", "entropy of a part's couplings in bits", settings.folder / PICTURES[1], size=(6.4, 3.8),
        marker=".", style=dashed, legend={"fontsize": 8, "frameon": True}, ylim=(0, 1.03),
    )  # fmt: skip
    rows = [_row(key, right[key] / weight, curves.get(key)) for key in right]
    settings.say(f"both digits predicted: {both} of {images}")
    return {
        "tables": {f"Parts of {images} overlays assigned to two digits": rows},
        "both_named": both / images,
        "entropy": {_title(key): value for key, value in curves.items()},
        "notes": [f"Both digits are predicted in {100 * both / images:.1f} % of the overlays.", *NOTES],
        "pictures": list(PICTURES),
    }


def _iterate(
    decoder: TopDownAttention, parts: Tensor, parents: Tensor, named: Tensor, beta: float | None, accumulate: bool
) -> list[Tensor]:
    """The couplings of every iteration, among the predicted parents: (batch, parts, classes) each."""
    decoder.iterations, decoder.accumulate = ITERATIONS, accumulate
    decoder.beta = parts.shape[-1] ** -0.5 if beta is None else beta
    with record(decoder) as trace:
        decoder(parents, parts, named)
    return [couplings.squeeze(1) for couplings in trace.steps("coupling")]


def _title(key: tuple[str, bool]) -> str:
    return f"beta {key[0]}{', accumulated' if key[1] else ''}"


def _row(key: tuple[str, bool], right: Tensor, entropy: list[float] | None) -> dict[str, Any]:
    # Without an overlay whose digits are both predicted there is nothing to count.
    percent = [[None if math.isnan(share) else 100 * share for share in step] for step in right.tolist()]
    return {
        "assignment": "routing" if key[0] == "routing" else _title(key),
        "entropy, step 1": None if entropy is None else entropy[0],
        f"step {ITERATIONS}": None if entropy is None else entropy[-1],
        "right %, step 1": percent[0][0],
        f"right %, step {ITERATIONS}": percent[-1][0],
        "weighted %": percent[-1][1],
    }


def _pair(couplings: Tensor, named: Tensor) -> Tensor:
    """Shares of the two predicted parents, the lower class first: (batch, parts, classes) -> (batch, parts, 2)."""
    two = couplings[named.unsqueeze(1).expand_as(couplings)].unflatten(0, (*couplings.shape[:2], 2))
    return two / two.sum(-1, keepdim=True)


def _entropy(shares: Tensor) -> Tensor:
    """In bits: (..., 2) -> (...)."""
    return -torch.special.xlogy(shares, shares).sum(-1) / torch.log(torch.tensor(2.0))


def _truth(batch: Batch, model: CapsNet, named: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a part belongs to the lower of the predicted classes, and whether that is known: bool (batch, parts)."""
    assert batch.targets is not None
    middle = batch.targets[..., (FIELD - MIDDLE) // 2 :, (FIELD - MIDDLE) // 2 :].flatten(0, 1)
    ink = torch.nn.functional.avg_pool2d(middle, MIDDLE, STEP)[..., : model.grid[0], : model.grid[1]].mean(1)
    ink = ink.unflatten(0, (-1, 2)).flatten(2).repeat(1, 1, model.primary_types)
    swapped = (batch.labels[:, 0] > batch.labels[:, 1])[:, None]
    first, second = ink.unbind(1)
    difference = torch.where(swapped, second - first, first - second)
    known = (named == many_hot(batch.labels, named.shape[1]).bool()).all(1)
    return difference > 0, (difference.abs() > 0.02) & known.unsqueeze(1)


def _shown(batch: Batch, parts: Tensor, named: Tensor, steps: dict[Any, list[Tensor]], grid: tuple[int, int]) -> Shown:
    """The content of the picture: shares over the image, each place the mean over its parts, weighted by length."""
    assert batch.targets is not None
    weights = lengths(parts).unflatten(1, (-1, *grid))

    def places(shares: Tensor) -> Tensor:
        mean = (shares[..., 0].unflatten(1, (-1, *grid)) * weights).sum(1) / weights.sum(1)
        return mean[:SHOWN].cpu()

    swapped = (batch.labels[:, 0] > batch.labels[:, 1])[:SHOWN, None, None, None, None]
    targets = torch.where(swapped, batch.targets[:SHOWN].flip(1), batch.targets[:SHOWN]).cpu()
    best = steps["16", True]
    maps = {"step 1": best[0], "step 3": best[2], f"step {ITERATIONS}": best[-1], "routing": steps["routing", False][0]}
    return Shown(
        batch.images[:SHOWN].cpu(),
        targets,
        {name: places(shares) for name, shares in maps.items()},
        weights.sum(1)[:SHOWN].cpu(),
        [row.nonzero().flatten().tolist() for row in named[:SHOWN].cpu()],
    )
