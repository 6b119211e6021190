"""Shapes into mechanisms and networks, against the plain form; and hostile names into pictures and cards."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hostile.ground import NAMES, Done, Try, network

SIZES = [0, 1, 1, 2, 3, 5, 7, 8, 9, 16, 17, 33]
CHANGES: list[Callable[[Any], Any]] = [
    lambda x: x, lambda x: x[:0], lambda x: x[:1], lambda x: x.double(), lambda x: x.half(), lambda x: x * 0,
    lambda x: x * 1e15, lambda x: x.repeat(3, *[1] * (x.dim() - 1)), lambda x: (x * 10).long(), lambda x: x > 0,
    lambda x: x.unsqueeze(0), lambda x: x.squeeze(0), lambda x: x.flatten(), lambda x: x[0, 0], lambda x: x[..., :-1],
    lambda x: x[..., :0], lambda x: x[:, :0], lambda x: x.bfloat16(), lambda x: x.to("meta"),
    lambda x: x.repeat_interleave(2, 1), lambda x: x.transpose(-1, -2), lambda x: x * -1e30, lambda x: x * (1 + 1j),
    lambda x: x.to_sparse(),
]  # fmt: skip


def shapes(random: Random) -> Try:
    """Dynamic routing of odd sizes: every way of running it against the plain one, outputs and gradients."""
    B, S, R, D, E = (random.choice(SIZES) for _ in range(5))
    steps, method = random.choice([1, 2, 3]), random.choice(["streamed", "fused"])
    scale = random.choice([0.0, 1e-30, 1.0, 1.0, 1e4])

    def work() -> Done:
        import torch

        from mereo.mechanisms.routing import dynamic_routing

        children = (torch.randn(B, S, D) * scale).requires_grad_()
        weight = (torch.randn(R, S, D, E) * 0.3).requires_grad_()

        def run(way: str, dtype: torch.dtype = torch.float32, rounding: float = 0.0) -> list[Any]:
            given = (x.detach().to(dtype) for x in (children, weight))
            u, W = ((x * (1 + rounding * torch.randn_like(x))).requires_grad_() for x in given)
            out = dynamic_routing(u, W, steps=steps, method=way)
            return [out, *torch.autograd.grad(out.square().sum() + out.sum(), (u, W))]

        # What plain loses in float32, or rounding the inputs to it changes, is lost by the problem: the derivative of a
        # saturated length, say, or of shares of scores in the thousands.
        exact = run("plain", torch.float64)
        moved = [run("plain", torch.float64, rounding=2.0**-24) for _ in range(3)]
        for got, *others, expected in zip(run(method), run("plain"), *moved, exact, strict=True):
            assert got.shape == expected.shape and got.isfinite().all()
            if got.numel():
                most, lost = expected.abs().max().clamp(min=1e-3), max((x - expected).abs().max() for x in others)
                off = (got - expected).abs().max()
                assert off <= 1e-3 * most + 10 * lost, (float(off), float(most), float(lost))
        return Done(0)

    return Try(f"dynamic_routing {B, S, R, D, E} steps {steps} {method} scale {scale}", work)


def mechanisms(random: Random) -> Try:
    """A mechanism of the catalogue with its inputs cut, repeated, of another type or with odd values."""
    seed = random.getrandbits(32)

    def work() -> Done:
        import inspect

        import torch

        from mereo.catalogue import MECHANISMS
        from mereo.errors import UsageError

        drawn = Random(seed)
        torch.manual_seed(0)
        # A technique acts on a model of the caller, whose own layers answer to inputs that do not fit.
        classes = sorted(name for name, entry in MECHANISMS.items() if inspect.isclass(entry.target))
        entry = MECHANISMS[drawn.choice(classes)]
        module, inputs = entry.example()
        changed = [x if drawn.random() < 0.3 else drawn.choice(CHANGES)(x) for x in inputs]
        tops = [min(entry.largest_input, torch.finfo(x.dtype).max) if x.is_floating_point() else 0 for x in changed]
        changed = [x.clamp(-top, top) if top and not x.is_sparse else x for x, top in zip(changed, tops, strict=True)]
        fits = [(x.dim(), x.is_floating_point()) for x in changed] == [(x.dim(), True) for x in inputs]
        try:
            out = module(*changed)
        except UsageError:
            return Done(2)
        assert fits, f"accepts {[(tuple(x.shape), x.dtype) for x in changed]}"
        for part in out if isinstance(out, tuple) else (out,):
            if torch.is_tensor(part) and part.is_floating_point() and not part.is_meta:
                assert part.isfinite().all(), "not finite"
        return Done(0)

    return Try(f"mechanism with odd inputs, seed {seed}", work)


def models(random: Random) -> Try:
    """A network of the catalogue with odd arguments: refused in words, or it gives finite scores."""
    from mereo.models import MODELS

    name = random.choice(sorted(MODELS))
    defaults = MODELS[name].defaults
    given: dict[str, Any] = {}
    for argument in random.sample(sorted(defaults), random.randint(1, 3)):
        default = defaults[argument]
        odd: Any = random.choice([0, 1, 2, 3, 5, 8, -1, 1.5, 2**31 - 1, "x", None, True, False, float("nan"), []])
        if isinstance(default, tuple) and random.random() < 0.7:
            odd = tuple(random.choice([0, 1, 2, 4, 8]) for _ in default)
        given[argument] = odd

    def work() -> Done:
        import torch

        from mereo.errors import UsageError
        from mereo.models import create_model
        from mereo.models.registry import outline

        try:
            stated = outline(name, **given)
            if sum(p.numel() for p in stated.parameters()) > 2 * 10**7 or max(stated.input_shape) > 64:
                return Done(0)
            model = create_model(name, **given).eval()
        except UsageError:
            return Done(2)
        with torch.no_grad():
            scores = model(model.example_inputs(2))
        assert scores.isfinite().all(), "not finite"
        return Done(0)

    return Try(f"create_model({name!r}, **{given!r})", work)


def names(random: Random) -> Try:
    """Hostile names in pictures, cards and reports."""
    chosen = [random.choice(NAMES) + random.choice(["", random.choice(NAMES), "1"]) for _ in range(10)]
    kind = random.choice(["images", "confusion", "comparison", "card"])

    def work() -> Done:
        import torch

        from mereo.export.card import model_card
        from mereo.export.comparison import draw_comparison, markdown
        from mereo.export.rows import Row
        from mereo.measure.classification_pictures import draw_confusion
        from mereo.tasks.pictures import draw_images

        if kind == "images":
            draw_images(torch.rand(10, 1, 8, 8), chosen, Path("a.png"), wrong=[True] * 10)
        elif kind == "confusion":
            draw_confusion(torch.ones(10, 10, dtype=torch.int64), tuple(chosen), chosen[0], Path("a.png"))
        elif kind == "comparison":
            rows = [Row(n, 1, 1, 1, (0.5, 0.6), "validation", 10, 1.0, 1.0, 1.0) for n in chosen[:3]]
            draw_comparison(rows, Path("a.png"), chosen[3])
            assert "\x1b" not in markdown(rows, chosen[4], chosen[5])
        else:
            model = network()
            model.class_names = tuple(chosen)
            model.pretrained_cfg["license"] = chosen[0]
            text = model_card(model, {"data": chosen[1], "command": chosen[2]}, chosen[3])
            assert not set("\x1b\u202e\0") & set(text)
        return Done(0)

    return Try(f"{kind} of {[n[:30] for n in chosen]!r}", work)
