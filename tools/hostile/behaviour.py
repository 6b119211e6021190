"""Every mechanism and network: interventions of any kind, transforms, empty batches; every kernel against plain."""

from collections.abc import Callable
from random import Random
from typing import Any

from hostile.ground import Done, Try

SIZES = [0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17]
CHANGES: dict[str, Callable[[Any], Any]] = {
    "same": lambda c: c, "zeros": lambda c: c * 0, "nothing": lambda c: None, "a number": lambda c: 1.0,
    "double": lambda c: c.double(), "half": lambda c: c.half(), "bool": lambda c: c > 0.5, "long": lambda c: c.long(),
    "complex": lambda c: c * 1j, "NaN": lambda c: c * float("nan"),
    "infinite": lambda c: c - float("inf") if c.is_floating_point() else c,
    "one NaN": lambda c: c.index_fill(0, c.new_zeros(1).long(), float("nan")), "sum": lambda c: c.sum(),
    "fewer": lambda c: c[..., :-1], "transposed": lambda c: c.transpose(-1, -2), "first": lambda c: c[:1],
    "more axes": lambda c: c.unsqueeze(0), "sparse": lambda c: c.to_sparse(), "meta": lambda c: c.to("meta"),
    "huge": lambda c: c * 1e30, "list": lambda c: c.tolist(), "masked": lambda c: c.masked_fill(c < 0, -float("inf")),
}  # fmt: skip
HARMLESS = {"same", "zeros", "huge", "masked"}
"""What may act; everything else must be refused unless it changes nothing."""


def _finite(output: Any) -> bool:
    return all(bool(x.isfinite().all()) for x in (output if isinstance(output, tuple) else (output,)))


def _entry(random: Random) -> Any:
    import torch

    from mereo.catalogue import MECHANISMS

    torch.manual_seed(random.getrandbits(30))
    return MECHANISMS[random.choice(sorted(MECHANISMS))]


def interventions(random: Random) -> Try:
    """Functions of `intervene` that return something else than they were given."""
    seed, which, where = random.getrandbits(32), random.choice(sorted(CHANGES)), random.choice(["changes", "scores"])

    def work() -> Done:
        import mereo
        from mereo.errors import UsageError

        module, inputs = (entry := _entry(Random(seed))).example()
        with mereo.record(module) as trace:
            module(*inputs)
        if not trace:
            return Done(0)
        name = Random(seed).choice(sorted(trace))
        try:
            with mereo.intervene(module, **{where: {name: CHANGES[which]}}), mereo.record(module) as acted:
                output = module(*inputs)
        except UsageError as error:
            assert name in str(error) or entry.records != "couplings", error
            return Done(2)
        assert _finite(output), f"{which} of {name} of {entry.name} gives values that are not finite"
        shapes = [value.shape for value in acted.steps(name)] == [value.shape for value in trace.steps(name)]
        assert shapes and (which in HARMLESS or where == "scores" or acted[name].shape == trace[name].shape)
        return Done(0)

    return Try(f"intervene with {where}, {which}, seed {seed}", work)


def transforms(random: Random) -> Try:
    """jvp, vmap, jacobians and second derivatives of a mechanism, against reverse mode and loops."""
    seed, kind = (
        random.getrandbits(32),
        random.choice(["jvp", "vmap", "jacrev", "jacfwd", "dual", "grad of grad", "vmap of grad"]),
    )

    def work() -> Done:
        import torch
        from torch.autograd import forward_ad

        module, inputs = (entry := _entry(Random(seed))).example()
        module = module.double().eval()
        # Numbers of tokens stay as they are: nothing is differentiated by them.
        whole = {place: x for place, x in enumerate(inputs) if not x.is_floating_point()}
        inputs = tuple(x.double().requires_grad_() for x in inputs if x.is_floating_point())

        def f(*given: Any) -> Any:
            rest = iter(given)
            places = range(len(whole) + len(given))
            output = module(*(whole[place] if place in whole else next(rest) for place in places))
            return output[0] if isinstance(output, tuple) else output

        tangents = tuple(torch.randn_like(x) for x in inputs)
        output = f(*inputs)
        weight = torch.randn_like(output)

        def scalar(*given: Any) -> Any:
            return (f(*given) * weight).sum()

        gradients = torch.autograd.grad(scalar(*inputs), inputs)
        along = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
        detached = tuple(x.detach() for x in inputs)
        if kind == "jvp":
            value, tangent = torch.func.jvp(f, detached, tangents)
            pairs = [(value, output), ((tangent * weight).sum(), along)]
        elif kind == "dual":
            with forward_ad.dual_level():
                dual = f(*(forward_ad.make_dual(x, t) for x, t in zip(detached, tangents, strict=True)))
                tangent = forward_ad.unpack_dual(dual).tangent
                assert tangent is not None, f"the tangent of {entry.name} is dropped"
                pairs = [((tangent * weight).sum(), along)]
        elif kind == "vmap":
            many = tuple(torch.stack([x, -x, 2 * x]) for x in detached)
            if entry.name == "em":  # activations are probabilities
                many = (many[0], many[1].clamp(0, 1))
            pairs = [(torch.func.vmap(f)(*many), torch.stack([f(*(x[n] for x in many)) for n in range(3)]))]
        elif kind == "vmap of grad":
            many = tuple(torch.stack([x, x * 0.5]) for x in detached)
            got = torch.func.vmap(torch.func.grad(scalar))(*many)
            pairs = [(got[n], torch.func.grad(scalar)(*(x[n] for x in many))) for n in range(2)]
            pairs.append((torch.func.grad(scalar)(*detached), gradients[0]))
        elif kind == "grad of grad":
            first = torch.autograd.grad(scalar(*inputs), inputs, create_graph=True)
            slopes = sum((g * t).sum() for g, t in zip(first, tangents, strict=True))
            # A mechanism that is linear in its input has second derivatives of zero, and no graph of them.
            second = (
                torch.autograd.grad(slopes, inputs, allow_unused=True, materialize_grads=True)
                if slopes.requires_grad
                else tuple(torch.zeros_like(x) for x in inputs)
            )
            step = 1e-5

            def slope(sign: int) -> Any:
                moved = tuple(
                    (x + sign * step * t).detach().requires_grad_() for x, t in zip(inputs, tangents, strict=True)
                )
                return torch.autograd.grad(scalar(*moved), moved)

            pairs = [(s, (a - b) / (2 * step)) for s, a, b in zip(second, slope(1), slope(-1), strict=True)]
            for got, expected in pairs:
                torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
            return Done(0)
        else:
            jacobian = getattr(torch.func, kind)(f)(*detached)
            pairs = [(torch.tensordot(weight, jacobian, output.dim()), gradients[0])]
        for got, expected in pairs:
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)
        return Done(0)

    return Try(f"{kind}, seed {seed}", work)


def empty(random: Random) -> Try:
    """No images at all, forward and backward, through a mechanism or a network."""
    seed, training, whole = random.getrandbits(32), random.random() < 0.5, random.random() < 0.5

    def work() -> Done:

        import mereo
        from mereo.errors import UsageError
        from mereo.models import MODELS

        drawn = Random(seed)
        if whole:
            # Others are gigabytes of weights.
            name = drawn.choice(sorted(name for name, entry in MODELS.items() if entry.parameters < 1e8))
            module: Any = mereo.create_model(name)
            inputs: Any = (module.example_inputs(1)[:0],)
        else:
            module, inputs = _entry(drawn).example()
            inputs = tuple(x[:0] for x in inputs)
        module.train(training)
        inputs = tuple(x.requires_grad_(x.is_floating_point()) for x in inputs)
        try:
            output = module(*inputs)
        except UsageError:
            assert training
            return Done(2)
        assert len(output) == 0
        (output.sum() + 0 * sum(x.sum() for x in inputs)).backward()
        for name, x in module.named_parameters():
            assert x.grad is None or (x.grad == 0).all(), f"the gradient of {name} is {x.grad.abs().max()}"
        assert all(b.isfinite().all() for b in module.buffers() if b.is_floating_point()), "a buffer is not finite"
        return Done(0)

    return Try(f"an empty batch, training {training}, network {whole}, seed {seed}", work)


PRECISIONS = ("float16", "bfloat16")
KINDS = (*PRECISIONS, "second derivatives", "blank images", "blank images in training", "folded")


def presets(random: Random) -> Try:
    """A published preset at its own depth: half precision, second derivatives, blank images, folding."""
    from mereo.models import MODELS

    name, kind, seed = random.choice(sorted(MODELS)), random.choice(KINDS), random.getrandbits(30)

    def work() -> Done:
        import torch

        import mereo
        from hostile.presets import blank_gradients, second_derivatives, small

        arguments = small(name) or small(name, narrow=False)
        if arguments is None:
            return Done(2)
        torch.manual_seed(seed)
        model: Any = mereo.create_model(name, **arguments).eval()
        images = torch.rand(random.choice([1, 2, 17]), *model.image_shape)
        if kind in PRECISIONS:
            expected = model(images).detach()
            half = images.to(getattr(torch, kind)).requires_grad_()
            scores = model.to(half.dtype)(half)
            scores.float().sum().backward()
            # Residual networks whose norms have seen no images may grow beyond the largest number of float16.
            assert scores.dtype == half.dtype and (scores.isfinite().all() or expected.abs().max() > 1e3)
        elif kind == "second derivatives":
            off = second_derivatives(model.train(random.random() < 0.3), seed)
            assert off < 1e-3, off
        elif kind == "folded":
            with torch.no_grad():
                expected, answers = model(images), model.fuse()(images)
            assert (expected - answers).abs().max() <= 1e-3 * expected.abs().max()
        else:
            wrong = blank_gradients(model.train(kind != "blank images"))
            assert not wrong, wrong
        return Done(0)

    return Try(f"{kind} of {name}, seed {seed}", work)


def arguments(random: Random) -> Try:
    """Poses of any sizes into layers of capsules, and values of any kind into functions: refused in words, or used."""
    seed, which = random.getrandbits(32), random.choice(["capsules", "neighborhood", "clear", "generate", "intervene"])

    def work() -> Done:
        import torch

        from mereo.errors import UsageError

        torch.manual_seed(seed)
        drawn = Random(seed)
        odd: Any = drawn.choice([0, 1, 3, 2.5, -1, "3", None, True, float("nan"), float("inf"), [], 10**9, 1j, len])

        def changed(*shape: int) -> Any:
            x = torch.randn(*shape)
            return drawn.choice([x, x, x[..., :0], (x * 9).long(), x * 1j, x > 0, x.half(), x.double(), x[:, :0]])

        try:
            if which == "capsules":
                from mereo.layers.capsules import ConvCapsules
                from mereo.mechanisms.routing import VOTE_ROUTINGS

                pose = drawn.choice(["vector", "matrix", "complex"])
                first = {"vector": [], "matrix": [drawn.randint(1, 4)], "complex": [2]}[pose]
                shapes = [(*first, drawn.randint(1, 6)) for _ in range(2)]
                layer = ConvCapsules(
                    drawn.randint(1, 3), drawn.randint(2, 3), drawn.randint(1, 3), in_pose=shapes[0],
                    out_pose=shapes[1], pose=pose, routing=drawn.choice(sorted(VOTE_ROUTINGS)),
                )  # fmt: skip
                for parameter in layer.routing.parameters():
                    torch.nn.init.normal_(parameter)
                poses = torch.randn(2, layer.in_types, *shapes[0], 3, 3).requires_grad_()
                parents = layer(poses, torch.rand(2, layer.in_types, 3, 3))
                (gradient,) = torch.autograd.grad(parents.pose.square().sum(), poses)
                assert _finite(gradient) and gradient.any()
                if parents.activation.requires_grad and shapes[0][-1] > 1:
                    parents = layer(poses, torch.rand(2, layer.in_types, 3, 3))
                    (gradient,) = torch.autograd.grad(parents.activation.square().sum(), poses)
                    assert _finite(gradient)
            elif which == "neighborhood":
                from mereo.mechanisms.attention.local.neighborhood import neighborhood_attention

                q, k, v = (changed(2, 5, 6, 2, 4) for _ in range(3))
                out: Any = neighborhood_attention(q, k, v, drawn.choice([3, 3, odd]), scale=drawn.choice([None, odd]))
                assert _finite(out)
            elif which == "clear":
                from mereo.mechanisms.attention.local.clear import clear_attention

                x = torch.randn(2, 2, 30, 4)
                assert _finite(clear_attention(x, x, x, (5, 6), 2.0, scale=drawn.choice([None, odd])))
            elif which == "generate":
                from mereo.models import create_model
                from mereo.models.registry import families

                entry = drawn.choice(sorted(families("tokens").values(), key=lambda entry: entry.name))
                model: Any = create_model(entry.name, **(entry.tiny or {}))
                wanted = {drawn.choice(["count", "temperature", "top"]): odd}
                if wanted.get("count") == 10**9:
                    return Done(2)
                tokens = torch.randint(0, model.vocab_size, (2, 3))
                assert model.generate(tokens, **{"count": 2, **wanted}).shape[0] == 2
            else:
                import mereo

                module, inputs = _entry(drawn).example()
                with mereo.record(module) as trace:
                    module(*inputs)
                for name in sorted(trace)[:1]:
                    with mereo.intervene(module, **{drawn.choice(["changes", "scores"]): {name: odd}}):
                        module(*inputs)
                    raise AssertionError(f"{odd!r} acts as a function")
        except UsageError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            return Done(2)
        return Done(0)

    return Try(f"odd arguments of {which}, seed {seed}", work)


def kernels(random: Random) -> Try:
    """A verb of odd sizes, executed in every way and type, against the plain form in float64."""
    which, seed = random.choice(["dynamic", "votes", "best", "attention", "bessel"]), random.getrandbits(32)
    B, R, S, D, E = (random.choice(SIZES) for _ in range(5))
    kind, scale = random.choice(["float32"] * 3 + ["bfloat16", "float16"]), random.choice([0.0, 1e-20, 1.0, 1.0, 30.0])

    def work() -> Done:
        import torch

        from mereo.errors import UsageError

        torch.manual_seed(seed)
        random = Random(seed)
        dtype = getattr(torch, kind)

        def make(*shape: int, times: float = 1.0) -> Any:
            return (torch.randn(shape) * times).to(dtype)

        mask = None
        if which == "dynamic":
            from mereo.mechanisms.routing import dynamic_routing

            tensors = [make(B, S, D, times=scale), make(R, S, D, E, times=0.3)]
            steps, ways = random.choice([1, 2, 3]), ["fused", "streamed", "auto"]

            def run(way: str, *x: Any) -> Any:
                return dynamic_routing(*x, steps=steps, method=way)
        elif which == "votes":
            from mereo.core import DenseVotes, SharedVotes

            shared, verb = random.random() < 0.5, random.choice(["combine", "agree"])
            weight = make(R, D, E) if shared else make(R, S, D, E)
            tile = random.choice([None, 1, 2, 5, 100])
            tensors = [make(B, S, D, times=scale), weight, make(B, 1, R, S if verb == "combine" else E)]
            ways = ["streamed", "auto"]

            def run(way: str, u: Any, w: Any, other: Any) -> Any:
                way = "stored" if way == "plain" else way
                votes = (SharedVotes if shared else DenseVotes)(u, w, method=way, tile=tile)
                return getattr(votes, verb)(other)
        elif which == "best":
            from mereo.mechanisms.routing.cross_agreement import CrossAgreementRouting

            members = random.choice([1, 2, 4])
            sizes = [max(n, 1) for n in (S, R, D, E)]
            module = CrossAgreementRouting(sizes[0] * members, sizes[0], sizes[1], sizes[2], sizes[2], sizes[3])
            tensors = [make(B, sizes[0] * members, sizes[2], times=scale), make(B, sizes[0], sizes[2])]
            ways = ["streamed", "auto"]

            def run(way: str, *x: Any) -> Any:
                return module.to(x[0].dtype)(*x, method=way)
        elif which == "attention":
            from mereo.core import Causal, Coupling
            from mereo.core.kernels.attention import attend

            causal = random.random() < 0.4
            coupling = Coupling("senders", topology=Causal() if causal else None)
            if random.random() < 0.5:
                mask = torch.rand(B, 1, 1, S) > 0.4
            d = max(D, 1)
            tensors = [make(B, 2, R, d, times=scale), make(B, 2, S, d), make(B, 2, S, E)]
            ways = ["sdpa", "auto"]

            def run(way: str, *x: Any) -> Any:
                return attend(*x, coupling, mask=mask, method=way)
        else:
            return bessel(random)

        def results(way: str, wanted: Any) -> list[Any]:
            given = [x.detach().to(wanted).requires_grad_() for x in tensors]
            out = run(way, *given)
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(wanted)
            return [out, *torch.autograd.grad((out * weights).sum(), given)]

        try:
            exact, plain = results("plain", torch.float64), results("plain", dtype)
        except UsageError:
            return Done(2)
        least = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}[kind]
        # Below this, a result is what remains of larger terms that cancel.
        smallest = 1e-3 if kind == "float32" else 1e-2
        for way in ways:
            for place, (got, rough, expected) in enumerate(zip(results(way, dtype), plain, exact, strict=True)):
                assert got.shape == expected.shape and got.isfinite().all(), (way, place, "not finite")
                if got.numel():
                    most, lost = expected.abs().max().clamp(min=smallest), (rough.double() - expected).abs().max()
                    off = (got.double() - expected).abs().max()
                    assert off <= least * most + 10 * lost, (way, place, float(off), float(most), float(lost))
        return Done(0)

    return Try(f"{which} {(B, R, S, D, E)} {kind} scale {scale} seed {seed}", work)


def bessel(random: Random) -> Done:
    """The von Mises-Fisher normaliser and its derivative against scipy."""
    import torch
    from scipy.special import ive

    from mereo.generative.bessel import log_bessel_i, mean_resultant_length

    order = random.choice([0.0, 0.5, 1.0, 1.5, 3.5, 7.0, 15.5])
    x = torch.tensor([10 ** random.uniform(-3, 3) for _ in range(random.choice([0, 1, 7, 100]))], dtype=torch.float64)
    expected = torch.from_numpy(ive(order, x.numpy())).log() + x
    torch.testing.assert_close(log_bessel_i(order, x), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(log_bessel_i(order, x.float()), expected.float(), rtol=1e-5, atol=1e-4)
    dimension = int(2 * order + 2)
    ratio = torch.from_numpy(ive(order + 1, x.numpy()) / ive(order, x.numpy()))
    torch.testing.assert_close(mean_resultant_length(dimension, x), ratio, rtol=1e-9, atol=1e-12)
    return Done(0)
