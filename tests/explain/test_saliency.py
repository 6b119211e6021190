"""Saliency: every cell of the two phases against loops, the presets by what they must equal, and the checks of maps."""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.explain import attention_layers, attention_rollout, input_gradients, integrated_gradients, observe
from mereo.explain.saliency import (
    METHODS,
    aggregate,
    attention_flow,
    check_saliency,
    class_sensitivity,
    combine_layers,
    extract_aggregate,
    layer_signals,
    meta_saliency,
    perturbation_curves,
    pointing_game,
    randomised_weights,
    saliency_map,
)
from mereo.explain.saliency.checks import Mean
from mereo.explain.saliency.two_phase import PHASE1, PHASE2, unit_range
from mereo.explain.saliency_pictures import describe_checks
from mereo.models import VisionModel, save_weights
from pictures import picture
from plain_cnn import EmbeddingCNN, MapCNN, PlainCNN

X = torch.tensor([[[[1.0, 2.0], [0.0, -1.0]], [[0.0, 1.0], [3.0, 1.0]]]])
G = torch.tensor([[[[1.0, 0.0], [2.0, 1.0]], [[0.0, -1.0], [-2.0, 1.0]]]])
CELLS = {
    ("scaling", "sum"): [[1, -1], [-6, 0]],
    ("scaling", "norm"): [[1, 1], [6, 2**0.5]],
    ("scaling", "positive_norm"): [[1, 0], [0, 1]],
    ("scaling", "max"): [[1, 0], [0, 1]],
    ("conv1x1", "norm"): [[1, 5**0.5], [72**0.5, 2]],
    ("bias", "norm"): [[1, 1], [8**0.5, 2**0.5]],
}


@pytest.fixture
def cnn() -> PlainCNN:
    return _cnn(PlainCNN)


def _cnn(of: type[VisionModel], **given: object) -> VisionModel:
    torch.manual_seed(0)
    model = of(**given).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(module.weight, 1, 0.3)
    return model


def _vit(**given: object) -> VisionModel:
    torch.manual_seed(1)
    sizes = {
        "img_size": 8,
        "patch_size": 4,
        "embed_dim": 8,
        "depth": 2,
        "num_heads": 2,
        "num_classes": 3,
        "in_chans": 1,
    }
    model = mereo.create_model("vit_tiny", **{**sizes, **given}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def _images(model: VisionModel, count: int = 2) -> Tensor:
    return torch.rand(count, *model.image_shape, generator=torch.Generator().manual_seed(3)).double()


def test_the_worked_maps() -> None:
    for (phase1, phase2), expected in CELLS.items():
        torch.testing.assert_close(aggregate(X, G, phase1, phase2)[0, 0], torch.tensor(expected).float())
    mean = G.mean((2, 3), keepdim=True).expand_as(G)
    gradcam = aggregate(X, mean, "scaling", "sum").clamp(min=0)
    torch.testing.assert_close(gradcam[0, 0], torch.tensor([[1, 1.5], [0, 0]]))


def _layers() -> dict[str, nn.Module]:
    return {
        "conv1x1": nn.Conv2d(4, 4, 1),
        "conv3x3": nn.Conv2d(4, 4, 3, padding=1),
        "conv3x3_depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
        "real": nn.Conv2d(4, 6, (3, 2), stride=2, padding=(2, 1), dilation=(1, 2), groups=2),
    }


def test_every_cell_is_the_gradient_of_a_real_layer_at_one_place() -> None:
    torch.manual_seed(0)
    x, layers = torch.randn(1, 4, 4, 5, dtype=torch.float64), _layers()
    reductions: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": torch.sum, "norm": torch.linalg.vector_norm, "max": torch.amax,
        "positive_norm": lambda t: torch.linalg.vector_norm(t.clamp(min=0)), "abs_max": lambda t: t.abs().amax(),
    }  # fmt: skip
    for phase1 in PHASE1:
        layer = layers.get(phase1, nn.Identity()).double()
        g = torch.randn_like(layer(x))
        for row, column in itertools.product(range(g.shape[2]), range(g.shape[3])):
            # The weight gradient of a layer through which only this place passes a signal back.
            if phase1 in layers:
                (part,) = torch.autograd.grad(layer(x)[..., row, column], layer.weight, g[..., row, column])
            else:
                part = (x * g if phase1 == "scaling" else g)[0, :, row, column]
            for phase2 in PHASE2:
                found = aggregate(x, g, phase1, phase2, layer if phase1 == "real" else None)[0, 0, row, column]
                torch.testing.assert_close(found, reductions[phase2](part))
    with pytest.raises(UsageError) as refused:
        aggregate(x, x, "conv7x7", "sum")  # type: ignore[arg-type]
    assert "phase1" in str(refused.value) and "conv7x7" in str(refused.value)


def test_signals_are_derivatives_by_the_layers(cnn: PlainCNN) -> None:
    images = _images(cnn)
    found = layer_signals(cnn, images, 2, ["stages.0", 1, -1])
    assert list(found) == ["stages.0", "stages.1", "stages.2"]
    x, g = found["stages.1"]
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(cnn.classify(cnn.stage(2, leaf))[:, 2].sum(), leaf)
    torch.testing.assert_close(x, cnn.stage(1, cnn.stage(0, images)))
    torch.testing.assert_close(g, expected)
    torch.testing.assert_close(layer_signals(cnn, images, 2, ["input"])["input"].g, input_gradients(cnn, images, 2))
    seed = torch.randn(2, 5, dtype=torch.float64)
    torch.testing.assert_close(
        layer_signals(cnn, images, seed, [1])["stages.1"].g,
        layer_signals(cnn, images, lambda outputs: (outputs * seed).sum(1), [1])["stages.1"].g,
    )
    linear = extract_aggregate(cnn, images, 2, 1, "scaling", "sum")
    torch.testing.assert_close(linear.flatten(1).sum(1), (x * g).flatten(1).sum(1))
    assert extract_aggregate(cnn, images, 2, "stages.1.0", "real", "norm", resize=(16, 16)).shape == (2, 1, 16, 16)


def test_gradcam_before_global_pooling_is_the_linear_approximation(cnn: PlainCNN) -> None:
    cam, linear, plus = (
        METHODS[name](cnn, _images(cnn), 1, [2])["stages.2"]
        for name in ("gradcam", "linear_approximation", "gradcam_plus_plus")
    )
    torch.testing.assert_close(cam, linear.clamp(min=0))
    assert plus.shape == cam.shape and bool(plus.isfinite().all())


def test_a_scaled_score_scales_normgrad(cnn: PlainCNN) -> None:
    images = _images(cnn)
    plain = METHODS["normgrad"](cnn, images, lambda outputs: outputs[:, 0], [1])["stages.1"]
    scaled = METHODS["normgrad"](cnn, images, lambda outputs: -3 * outputs[:, 0], [1])["stages.1"]
    torch.testing.assert_close(scaled, 3 * plain)
    torch.testing.assert_close(unit_range(scaled), unit_range(plain))


def test_a_translation_by_the_stride_translates_the_map() -> None:
    model = _cnn(PlainCNN, img_size=64)
    images = torch.full((2, 3, 64, 64), 0.5, dtype=torch.float64)
    images[0, :, 24:32, 24:32] = images[1, :, 32:40, 32:40] = torch.rand(3, 8, 8, dtype=torch.float64)
    for name, layer, step in (("normgrad", 1, 2), ("linear_approximation", 2, 1), ("excitation", 1, 2)):
        first, second = METHODS[name](model, images, 0, [layer])[f"stages.{layer}"][:, 0]
        edge, side = 2 * step, len(first)
        inner = first[edge : side - edge - step, edge : side - edge - step]
        torch.testing.assert_close(
            second[edge + step : side - edge, edge + step : side - edge], inner, rtol=1e-6, atol=1e-9
        )


def test_layers_are_combined_by_weighted_means() -> None:
    a, b = torch.rand(2, 2, 1, 4, 4).unbind(0)
    constant = torch.ones(2, 1, 2, 2)
    both = combine_layers([a, b], [1, 3])
    torch.testing.assert_close(both, unit_range(a) ** 0.25 * unit_range(b) ** 0.75)
    torch.testing.assert_close(combine_layers([a, b], "depth", "sum"), (unit_range(a) + 2 * unit_range(b)) / 3)
    assert combine_layers([a, constant]).shape == (2, 1, 4, 4) and not combine_layers([a, constant]).any()
    with pytest.raises(UsageError) as refused:
        combine_layers([a, b], [1.0])
    assert "weights" in str(refused.value)


def _rules_by_hand(cnn: PlainCNN, images: Tensor, guided: bool) -> Tensor:
    """The signal at the image, layer by layer."""
    inputs, current = [], images
    for stage in cnn.stages:
        inputs.append((current, stage[:2](current)))
        current = stage(current)
    cells = current.shape[2] * current.shape[3]
    g = (cnn.head.weight[1] / cells).view(1, -1, 1, 1).expand_as(current)
    for stage, (given, before) in reversed(list(zip(cnn.stages, inputs, strict=True))):
        g = g.clamp(min=0) * (before > 0 if guided else 1)
        leaf = given.detach().requires_grad_()
        (g,) = torch.autograd.grad(stage[:2](leaf), leaf, g)
    return g


@pytest.mark.parametrize("inplace", [False, True])
def test_the_rules_of_relu(cnn: PlainCNN, inplace: bool) -> None:
    images = _images(cnn)
    expected = {name: _rules_by_hand(cnn, images, name == "guided") for name in ("guided", "deconvnet")}
    for stage in cnn.stages:
        stage[2].inplace = inplace
    plain = layer_signals(cnn, images, 1, ["stages.1.1", "input"])  # before a ReLU that writes into it
    torch.testing.assert_close(plain["stages.1.1"].x, cnn.stages[1][:2](cnn.stage(0, images)))
    for rule, wanted in expected.items():
        torch.testing.assert_close(layer_signals(cnn, images, 1, ["input"], rule=rule)["input"].g, wanted)  # type: ignore[arg-type]
    torch.testing.assert_close(plain["input"].g, input_gradients(cnn, images, 1))


class Positive(PlainCNN):
    """Convolutions without biases and norms."""

    def __init__(self, **given: object) -> None:
        super().__init__(num_classes=3, img_size=8, widths=(4, 5), **given)
        for stage in self.stages:
            stage[0].bias = None
            stage[1] = nn.Identity()
            stage[2].inplace = True
        self.head.bias = None


def test_excitation_passes_everything_on_in_proportion_to_positive_weights() -> None:
    torch.manual_seed(0)
    model = Positive().double().eval()
    images = _images(model)
    both = METHODS["excitation"](model, images, 1, [0, 1, "input"])
    for name in both:
        assert bool((both[name] >= 0).all())
        torch.testing.assert_close(both[name].sum((1, 2, 3)), torch.ones(2, dtype=torch.float64))
    # At the last stage: shares x w+ / sum x w+ of the pooled channels, and of each the places in proportion to x.
    x, weight = model.forward_features(images), model.head.weight[1]
    parts = [x * each.clamp(min=0).view(1, -1, 1, 1) for each in (weight, -weight)]
    shares = [part / part.sum((1, 2, 3), keepdim=True) for part in parts]
    torch.testing.assert_close(both["stages.1"][:, 0], shares[0].sum(1))
    contrast = METHODS["contrastive_excitation"](model, images, 1, [1])["stages.1"]
    torch.testing.assert_close(contrast[:, 0], (shares[0] - shares[1]).sum(1))
    assert all(stage[2].inplace for stage in model.stages)


def _largest_flow(graph: list[Tensor], sink: int) -> float:
    """From node 0 above all layers to an input, as a linear programme: graph[l][r, s] from the last layer on."""
    from scipy.optimize import linprog

    edges = [
        (n, r, s, float(c)) for n, layer in enumerate(graph) for r, row in enumerate(layer) for s, c in enumerate(row)
    ]
    count = len(graph[0])
    rows = [
        [(n == level - 1 and s == node) - 1.0 * (n == level and r == node) for n, r, s, _ in edges]
        for level in range(1, len(graph))
        for node in range(count)
    ]
    # Only the class token is a source.
    rows += [[float(n == 0 and r == node) for n, r, _, _ in edges] for node in range(1, count)]
    reward = [-float(n == len(graph) - 1 and s == sink) for n, _, s, _ in edges]
    rows += [
        [float(n == len(graph) - 1 and s == other) for n, _, s, _ in edges] for other in range(count) if other != sink
    ]
    return -linprog(reward, A_eq=rows, b_eq=[0.0] * len(rows), bounds=[(0, c) for *_, c in edges]).fun


def test_attention_flow_is_the_largest_flow() -> None:
    model = _vit()
    observation = observe(model, _images(model, 1))
    graph = [(torch.eye(5) + observation.trace[f"blocks.{n}.attn.coupling"][0].mean(0)) / 2 for n in (1, 0)]
    found = attention_flow(observation)
    assert found is not None
    expected = torch.tensor([_largest_flow(graph, place) for place in range(1, 5)], dtype=torch.float64)
    torch.testing.assert_close(found.cells.flatten(), expected, atol=1e-6, rtol=0)
    first = attention_layers(observation)[:1]
    one, rolled = attention_flow(observation, first), attention_rollout(observation, first)
    assert one is not None and rolled is not None
    torch.testing.assert_close(one.cells / one.cells.sum(), rolled.cells.double(), atol=1e-6, rtol=0)


def test_every_method_gives_a_map_or_a_reason(make: Callable[..., VisionModel]) -> None:
    embedding = _cnn(EmbeddingCNN)
    targets = {"map": lambda maps: maps[:, 1].mean((1, 2)), "embedding": lambda vectors: vectors[:, 0]}
    networks = {"cnn": _cnn(PlainCNN), "vit": _vit(), "capsules": make("three scales"), "map": _cnn(MapCNN)}
    refused = set()
    for kind, model in {**networks, "embedding": embedding}.items():
        images = _images(model).to(next(model.parameters()).dtype)
        for name in METHODS:
            try:
                made = saliency_map(model, images, targets.get(kind), method=name)
            except UsageError as reason:
                assert "\n" not in str(reason)
                refused.add((kind, name))
            else:
                assert made.shape == (2, *images.shape[2:]) and bool(made.isfinite().all())
        assert not any(module._forward_hooks for module in model.modules())
    attention = {
        (kind, name) for kind in (*networks, "embedding") for name in ("rollout", "attention_flow") if kind != "vit"
    }
    relu = {("vit", name) for name in ("deconvnet", "guided_backprop")}
    excitation = {(kind, name) for kind in ("vit", "capsules") for name in ("excitation", "contrastive_excitation")}
    assert refused == attention | relu | excitation
    one = saliency_map(embedding, images, targets["embedding"], method="integrated_gradients")
    torch.testing.assert_close(one, integrated_gradients(embedding, images, targets["embedding"]).sum(1))


def test_the_last_block_is_left_out_where_only_the_class_token_counts() -> None:
    model = _vit()
    assert list(METHODS["normgrad"](model, _images(model), None, None)) == ["blocks.0"]
    last = METHODS["normgrad"](model, _images(model), None, ["blocks.1", "blocks.1.norm1"])
    assert not last["blocks.1"].any() and bool(last["blocks.1.norm1"].any())


def test_the_meta_step(cnn: PlainCNN) -> None:
    images, before = _images(cnn), {name: value.clone() for name, value in cnn.state_dict().items()}
    plain = METHODS["normgrad"](cnn, images, None, None)["stages.2"]
    torch.testing.assert_close(meta_saliency("normgrad", lr=0.0)(cnn, images, None, None)["stages.2"], plain)
    found = meta_saliency("normgrad", lr=0.5, sign=-1)(cnn, images, 1, [0])["stages.0"]
    assert all(torch.equal(value, before[name]) for name, value in cnn.state_dict().items())
    other = _cnn(PlainCNN)
    loss = F.cross_entropy(other(images[1:]), torch.tensor([1]))
    loss.backward()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.5 * parameter.grad)
    torch.testing.assert_close(found[1:], METHODS["normgrad"](other, images[1:], 1, [0])["stages.0"])
    with pytest.raises(UsageError) as refused:
        meta_saliency("normgrad")(cnn, images, lambda outputs: outputs[:, 0], None)
    assert "target" in str(refused.value)


def test_intervals_of_correlations_end_where_correlations_do() -> None:
    values = torch.tensor([1.0, 0.9, 0.2])
    assert Mean.of(values).high > 1 > Mean.of(values).low > 0
    assert Mean.of(values, most=1.0).high == 1 and Mean.of(-values, most=1.0).low == -1
    assert math.isnan(Mean.of(values[:1], most=1.0).high) and math.isnan(Mean.of(values[:0], most=1.0).value)


def test_a_method_that_ignores_the_class_has_the_correlation_one(cnn: PlainCNN) -> None:
    images = _images(cnn)

    def ignores(model: VisionModel, images: Tensor, target: object, layers: object) -> dict[str, Tensor]:
        return {"input": images.mean(1, keepdim=True)}

    def constant(model: VisionModel, images: Tensor, target: object, layers: object) -> dict[str, Tensor]:
        return {"input": torch.ones_like(images[:, :1])}

    assert class_sensitivity(cnn, images, method=ignores).tolist() == [1.0, 1.0]
    assert randomised_weights(cnn, images, method=ignores).tolist() == [1.0, 1.0]
    assert class_sensitivity(cnn, images, method=constant).isnan().all()
    checks = check_saliency(cnn, images, method=constant, steps=2)
    assert checks.constant == 2 and checks.failures
    assert "nan" not in describe_checks("constant", checks) and "unknown" in str(checks.randomised)
    varied = checks._replace(randomised=Mean(0.1, 0.0, 0.2, 2))
    assert "everywhere" in varied.failures["class"]
    assert len(check_saliency(cnn, images, method=ignores, steps=2).failures) >= 2
    assert check_saliency(cnn, images, lambda outputs: outputs[:, 0], steps=2).deletion.images == 2
    # The most and the least probable class, from their own maps.
    scores = cnn(images)
    both = [
        saliency_map(cnn, images, c, [1], method="gradcam").flatten(1) for c in (scores.argmax(1), scores.argmin(1))
    ]
    ranks = [each.argsort(1).argsort(1).double() for each in both]
    found = class_sensitivity(cnn, images, [1], method="gradcam")
    for n in range(2):
        if (both[0][n].unique().numel(), both[1][n].unique().numel()) == (256, 256):
            torch.testing.assert_close(found[n], torch.corrcoef(torch.stack([r[n] for r in ranks]))[0, 1])


def test_curves_by_loops(cnn: PlainCNN) -> None:
    images = _images(cnn)
    maps = torch.rand(2, 16, 16, dtype=torch.float64)
    for mode in ("deletion", "insertion"):
        found = perturbation_curves(cnn, images, maps, 3, mode=mode, steps=4)  # type: ignore[arg-type]
        for n in range(2):
            order = maps[n].flatten().argsort(descending=True)
            for step in range(5):
                changed = images[n].flatten(1).clone()
                first = order[: 64 * step] if mode == "deletion" else order[64 * step :]
                changed[:, first] = images[n].mean((1, 2)).view(3, 1)
                score = cnn(changed.view(1, 3, 16, 16)).softmax(1)[0, 3]
                torch.testing.assert_close(found[n, step], score)


def test_the_pointing_game() -> None:
    maps, objects = torch.zeros(3, 5, 5), torch.zeros(3, 5, 5, dtype=torch.bool)
    maps[:, 1, 3], objects[0, 1, 3], objects[1, 3, 3], objects[2, 4, 0] = 1, True, True, True
    assert pointing_game(maps, objects).tolist() == [True, False, False]
    assert pointing_game(maps, objects, 2).tolist() == [True, True, False]
    with pytest.raises(UsageError) as refused:
        pointing_game(maps, objects.float())
    assert "objects" in str(refused.value)


REFUSED: tuple[tuple[str, dict[str, object], tuple[str, ...]], ...] = (
    ("a stage that is not there", {"layers": [3]}, ("layers", "3")),
    ("a module that is not there", {"layers": ["blocks.9"]}, ("layers", "blocks.9")),
    ("a module without places", {"layers": ["head"]}, ("layers", "head")),
    ("one layer as text", {"layers": "stages.0"}, ("layers", "stages.0")),
    ("a class that is not there", {"target": 5}, ("5", "4")),
    ("a target of another shape", {"target": torch.ones(2, 4)}, ("target", "(2, 4)")),
    ("a target that is constant", {"target": lambda outputs: torch.ones(2)}, ("target",)),
    ("no attention", {"method": "rollout"}, ("rollout", "PlainCNN")),
    ("an unknown method", {"method": "normgrat"}, ("normgrat",)),
    ("layers of the image", {"method": "integrated_gradients", "layers": [0]}, ("layers", "0")),
)


@pytest.mark.parametrize(("given", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refusals_leave_the_model_as_it_was(cnn: PlainCNN, given: dict[str, object], words: tuple[str, ...]) -> None:
    cnn.train()
    with pytest.raises(UsageError) as refused:
        saliency_map(cnn, _images(cnn), **given)  # type: ignore[arg-type]
    assert all(word in str(refused.value) for word in words) and "\n" not in str(refused.value)
    assert cnn.training and not any(module._forward_hooks for module in cnn.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in cnn.parameters())


def test_half_precision_is_refused(cnn: PlainCNN) -> None:
    with pytest.raises(UsageError) as refused:
        saliency_map(cnn.half(), _images(cnn).half())
    assert "float16" in str(refused.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., VisionModel]) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    save_weights("net.safetensors", make("three scales"), class_names=tuple("abcdefghij"))
    picture(0, (32, 32)).save("one.png")
    yield tmp_path


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "one.png", "--weights", "net.safetensors"]
    assert main([*words, "--method", "normgrad", "gradcam", "--layers", "0", "2", "--target", "class:c"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "saliency: explanation/saliency.png" and (folder / "explanation/saliency.png").exists()
    assert [line.partition(":")[0] for line in lines[1:]] == ["normgrad", "gradcam"]
    wrong = (["--method", "rollout"], ["--layers", "0"], ["--method", "normgrad", "--only", "page"])
    for each in (*wrong, ["--method", "normgrad", "--target", "class:z"], ["--method", "normgrad", "--out", "x.html"]):
        assert main([*words, *each]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_function(folder: Path) -> None:
    found = mereo.explain("net.safetensors", "one.png", classes="c", method=["normgrad"], layers=[0])
    model = found.model
    images = found._batches[0].images
    torch.testing.assert_close(found.saliency["normgrad"], saliency_map(model, images, 2, [0]))
    with pytest.raises(UsageError) as refused:
        mereo.explain("net.safetensors", "one.png", layers=[0])
    assert "layers" in str(refused.value)
