"""Networks that somebody changed: converted, saved, copied and fused; what comes back computes the same."""

import contextlib
import copy
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

from hostile.ground import Done, Try

SMALL: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3},
    "cait_xxs24_224": {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3},
    "davit_tiny": {"depths": (1, 1), "embed_dims": (8, 16), "num_heads": (2, 4)},
    "volo_d1_224": {
        "layers": (1, 2, 1, 1), "embed_dims": (8, 12, 12, 12), "num_heads": (2, 3, 3, 3), "img_size": 32,
        "stem_hidden_dim": 6,
    },
    "shvit_s1": {"embed_dim": (16, 24, 32), "depth": (1, 1, 1), "partial_dim": (4, 5, 7), "qk_dim": (3, 3, 3)},
    "maxvit_tiny_tf_224": {
        "embed_dim": (32, 64), "depths": (1, 1), "block_type": ("M",) * 2, "img_size": 64, "stem_width": 8,
    },
    "halonet26t": {"img_size": 64},
}  # fmt: skip
ARGUMENTS = [
    ("global_pool", "max"), ("global_pool", "avg"), ("global_pool", "avgmax"), ("drop_rate", 0.3), ("in_chans", 1),
    ("num_classes", 0), ("act_layer", "tanh"), ("act_layer", "relu"), ("norm_layer", 1e-3), ("norm_layer", 1e-7),
    ("qkv_bias", False), ("drop_path_rate", 0.2), ("attn_drop_rate", 0.1), ("mlp_ratio", 2), ("init_values", 0.1),
]  # fmt: skip


def _agree(model: Any, other: Any, images: Any, kind: Any) -> float:
    """The largest difference of two networks with the weights they have, as a share of the largest output."""
    import torch

    with torch.no_grad():
        a, b = (copy.deepcopy(each).cpu().to(kind).eval()(images.to(kind)) for each in (model, other))
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))


def _change(random: Random, model: Any) -> str:
    """One change of a live network, in place, and what it was."""
    import torch
    from torch import nn
    from torch.nn.utils import parametrizations, prune

    modules = [(name, module) for name, module in model.named_modules() if name]
    kinds = ["attribute", "activation", "hook", "forward", "subclass", "freeze", "mode", "half", "sparse", "meta",
             "wrap", "prune", "norm of weights", "swap", "identity", "momentum", "drop", "compile"]  # fmt: skip
    kind, (name, module) = random.choice(kinds), random.choice(modules)
    parent, _, child = name.rpartition(".")
    holder = model.get_submodule(parent)
    linears = [(n, m) for n, m in modules if isinstance(m, nn.Linear)]
    if kind == "attribute":
        numbers = [k for k, v in vars(module).items() if isinstance(v, int | float) and not k.startswith("_")]
        if not numbers:
            return "nothing"
        which = random.choice(numbers)
        before = getattr(module, which)
        setattr(module, which, not before if isinstance(before, bool) else before * 2)
        return f"{which} of {name}"
    if kind == "activation":
        acts = [(n, m) for n, m in modules if type(m).__name__ in ("GELU", "SiLU", "ReLU", "GELUTanh", "Tanh")]
        if acts:
            model.set_submodule(random.choice(acts)[0], random.choice([nn.GELU("tanh"), nn.ReLU(), nn.SiLU()]))
    elif kind == "hook":
        module.register_forward_hook(lambda m, i, o: o * 2 if isinstance(o, torch.Tensor) else o)
    elif kind == "forward":
        module.forward = lambda x, *_, **__: x
    elif kind == "subclass" and linears:
        where, linear = random.choice(linears)
        own = type("Own", (nn.Linear,), {"forward": lambda self, x: 2 * nn.Linear.forward(self, x)})
        linear.__class__ = own
        name = where
    elif kind == "freeze":
        module.requires_grad_(False)
    elif kind == "mode":
        module.train(not module.training)
    elif kind == "half":
        module.half()
    elif kind == "sparse" and linears:
        linear = random.choice(linears)[1]
        linear.weight = nn.Parameter(linear.weight.detach().to_sparse())
    elif kind == "meta":
        module.to("meta")
    elif kind == "wrap":
        holder._modules[child] = nn.Sequential(module)
    elif kind == "prune" and linears:
        prune.l1_unstructured(random.choice(linears)[1], "weight", 0.5)
    elif kind == "norm of weights" and linears:
        parametrizations.weight_norm(random.choice(linears)[1])
    elif kind == "swap":
        other_name, other = random.choice(modules)
        if type(other) is type(module) and not (other_name.startswith(name) or name.startswith(other_name)):
            model.set_submodule(name, copy.deepcopy(other))
    elif kind == "identity":
        holder._modules[child] = nn.Identity()
    elif kind == "momentum":
        for each in model.modules():
            if isinstance(each, nn.BatchNorm2d):
                each.momentum = 0.37
    elif kind == "drop":
        for each in model.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.37
    elif kind == "compile":
        holder._modules[child] = torch.compile(module)
    return f"{kind} of {name}"


def conversions(random: Random) -> Try:
    """A network of timm made with odd arguments or changed afterwards, or ours on the way to timm."""
    seed, name, to_timm = random.getrandbits(32), random.choice(sorted(SMALL)), random.random() < 0.25

    def work() -> Done:
        import timm
        import torch
        from torch import nn

        import mereo
        from mereo.errors import UsageError
        from mereo.models.same_function import _vary

        drawn = Random(seed)
        torch.manual_seed(seed)
        if to_timm:
            tiny = drawn.choice(["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "shvit_s1"])
            heads = drawn.choice([{}, {}, {"num_heads": 4}, {"mlp_ratio": 2.0}]) if "vit_" in tiny[:4] else {}
            source: Any = mereo.create_model(tiny, num_classes=drawn.choice([0, 3]), **heads)
            if drawn.random() < 0.3:
                source = drawn.choice([lambda m: m.fuse(), torch.compile, nn.Sequential])(source)
        else:
            given: dict[str, Any] = {"num_classes": 3, **SMALL[name]}
            for key, value in drawn.sample(ARGUMENTS, drawn.choice([0, 0, 1, 2])):
                given[key] = value
                if key == "act_layer":
                    given[key] = {"relu": nn.ReLU, "tanh": lambda *a, **k: nn.GELU("tanh")}[value]
                elif key == "norm_layer":
                    given[key] = lambda *a, eps=value, **k: nn.LayerNorm(*a, eps=eps)
            try:
                source = timm.create_model(name, **given)
            except Exception:
                return Done(1)
        for _ in range(drawn.choice([0, 1, 1, 1, 2])):
            try:
                _change(drawn, source)
            except Exception:
                return Done(1)
        try:
            result: Any = mereo.convert(source, to="timm" if to_timm else "mereo")
        except UsageError as error:
            assert "\n" not in str(error) and len(str(error)) < 3000, error
            return Done(2)
        inner = getattr(source, "_orig_mod", source)
        ours, theirs = (inner, result) if to_timm else (result, inner)
        images = torch.randn(1, *ours.image_shape)
        assert _agree(result, inner, images, torch.float64) < 1e-6, "another network"
        _vary(theirs)  # the weights that it started with may hide a difference
        fresh = mereo.convert(theirs)
        assert _agree(fresh, theirs, images, torch.float64) < 1e-6, "another network with other weights"
        trained = [sum(p.numel() for p in each.parameters() if p.requires_grad) for each in (inner, result)]
        assert trained[0] == trained[1] and inner.training == result.training, trained
        momenta = [{m.momentum for m in each.modules() if isinstance(m, nn.BatchNorm2d)} for each in (inner, result)]
        assert momenta[0] == momenta[1], momenta
        return Done(0)

    return Try(f"convert {'to' if to_timm else 'from'} timm, {name}, seed {seed}", work)


def _operations(random: Random) -> list[tuple[str, Callable[[Any], Any]]]:
    """Some surgeries with random arguments."""
    import mereo
    from mereo.surgery import linearise, watchable

    layers = random.choice([None, None, [0], [1], [0, 1]])
    ways: list[tuple[str, Callable[[Any], Any]]] = [
        ("moh", lambda m: mereo.moh(m, random.choice([0.3, 0.5, 1.0]), layers=layers)),
        ("moh by tokens", lambda m: mereo.moh(m, 0.5, routing="tokens", gate=random.choice(["code", "paper"]))),
        ("evit", lambda m: mereo.evit(m, random.choice([0.3, 0.7, 1]), fuse=random.random() < 0.5)),
        ("evit by numbers", lambda m: mereo.evit(m, layers=(1,), tokens=(3,), normalize=True)),
        ("dual", lambda m: mereo.dual_cross_attention(m, random.choice([0.1, 0.5, 1.0, None]))),
        ("linearise", lambda m: linearise(m, random.choice([1, 2, 2.5]), down_factor=random.choice([None, 2]))),
        ("sea", lambda m: mereo.sea(m, columns=4, top_k=random.choice([1, 2, 3.0]), layers=layers)),
        ("sparsifiner", lambda m: mereo.sparsifiner(m, random.choice([0.2, 0.5]), layers=layers)),
        ("watchable", lambda m: watchable(m, layers)),
        ("insert", lambda m: mereo.insert(m, "multi_head", random.choice(["blocks", "stages"]), heads=1) and m),
    ]  # fmt: skip
    return [random.choice(ways) for _ in range(random.choice([1, 1, 2, 3]))]


def surgeries(random: Random) -> Try:
    """Networks after surgeries and changes, saved and loaded in all ways: the same, or refused at once."""
    seed = random.getrandbits(32)

    def work() -> Done:
        import torch

        import mereo
        from mereo.errors import UsageError
        from mereo.models.registry import families

        drawn = Random(seed)
        torch.manual_seed(seed)
        hosts = ["vit", "vit", "evit", "spectformer", "moh_vit", "sparsifiner_vit", "nat", "biformer"]
        entry = families()[drawn.choice([name for name in hosts if name in families()])]
        model: Any = mereo.create_model(entry.name, **(entry.tiny or {})).eval()
        for _, operate in _operations(drawn):
            with contextlib.suppress(UsageError):  # not for this network
                model = operate(model)
        changed = drawn.random() < 0.4
        if changed:
            try:
                _change(drawn, model)
            except Exception:
                return Done(1)
        images = torch.rand(2, *model.image_shape)
        way = drawn.choice(["file", "folder", "create_model", "timm", "state"])
        try:
            if way in ("file", "create_model", "state"):
                mereo.save_weights("a.safetensors", drawn.choice([model, torch.compile(model)]))
            else:
                mereo.save_pretrained(model, "folder", card=False)
        except (UsageError, mereo.MereoError) as error:
            assert "\n" not in str(error), error
            return Done(2)
        try:
            expected = model.float().eval()(images)
        except UsageError:  # a surgery for all tokens after one that drops some
            return Done(2)
        if way == "create_model":
            loaded: Any = mereo.create_model(entry.name, weights="a.safetensors").eval()
        elif way == "state":
            try:
                loaded = mereo.create_model(entry.name, checkpoint_path="a.safetensors", **(entry.tiny or {})).eval()
            except UsageError:
                return Done(2)
        elif way == "file":
            loaded = mereo.load("a.safetensors")
        else:
            loaded = mereo.from_pretrained("folder")
        torch.testing.assert_close(loaded(images), expected, rtol=1e-4, atol=1e-5)
        return Done(0)

    return Try(f"surgeries, seed {seed}", work)


def _louder(module: Any, inputs: Any, output: Any) -> Any:
    """A hook that changes what a module returns, if that is a tensor of real numbers."""
    import torch

    return 1.5 * output if isinstance(output, torch.Tensor) and output.is_floating_point() else None


def copies(random: Random) -> Try:
    """Copies, pickles and fused forms of every family, made while it is recorded or changed."""
    seed = random.getrandbits(32)

    def work() -> Done:
        import torch

        import mereo
        from mereo.models.registry import families

        drawn = Random(seed)
        torch.manual_seed(seed)
        entry = families()[drawn.choice(sorted(families()))]
        variants = [{}, *(entry.variants or {}).values()]
        model: Any = mereo.create_model(entry.name, **{**(entry.tiny or {}), **drawn.choice(variants)}).eval()
        images = model.example_inputs(2)
        if drawn.random() < 0.5:
            drawn.choice(list(model.modules())).register_forward_hook(_louder)
        with mereo.record(model) as trace:
            expected = model(images)
        ways: list[Callable[[Any], Any]] = [
            copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m.fuse(), lambda m: m.fuse().fuse(),
            lambda m: copy.deepcopy(m.fuse()).fuse(), lambda m: copy.deepcopy(copy.deepcopy(m)),
        ]  # fmt: skip
        way, made = drawn.choice(ways), []
        names = drawn.sample(sorted(trace), min(len(trace), 2))
        with mereo.record(model):
            made.append(way(model))
            with mereo.intervene(model, dict.fromkeys(names, torch.zeros_like)):
                made.append(way(model))
                model(images)
        with torch.no_grad():
            for each in (*made, model):
                assert not any(getattr(m, "observers", ()) for m in each.modules()), "observers travel"
                torch.testing.assert_close(each(images), expected, rtol=1e-3, atol=1e-4)
        return Done(0)

    return Try(f"copies, seed {seed}", work)
