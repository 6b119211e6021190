"""Every family of networks under one protocol: what it gives, files of weights, compilers and exporters.

What every network promises is tested for all kinds: a network of another kind is tested by what it states that it reads
and gives. Promises of networks of images follow. Families are tested on their tiny preset and its registered variants,
all presets by checks that cost nothing: their outline. Networks that only the tests register give maps and embeddings.
"""

import ast
import copy
import inspect
import json
import pickle
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import mereo
import mereo.models
from mereo.bench.suites.backbones import drop_nothing
from mereo.core import Capsules, Coupling, Signal, added_losses
from mereo.core.mechanism_checks import forget_kept_tensors
from mereo.errors import UsageError
from mereo.models import INPUT_KINDS, MODELS, OUTPUT_KINDS, CapsuleClassifier, FeatureMaps, Network, get_model_entry
from mereo.models.registry import families, lay_out, outline, register_model
from networks import ALL, OWN, PLAIN, Case, all_registered, cases, difference, fits, parametrized, tiny
from networks import some_inputs as some_images
from reconstructions import check_reconstruction

TINY, VARIANTS = cases()
EVERY = [*TINY, *((name, "") for name in OWN)]
every_family = parametrized(EVERY)
every_case = parametrized(EVERY + VARIANTS)
every_costly_case = parametrized(EVERY, [*{case[0]: case for case in VARIANTS}.values()])  # seconds each
every_preset = pytest.mark.parametrize("name", [*ALL, *OWN])

IMAGES, IMAGE_VARIANTS = cases("images")
of_images = [*IMAGES, (PLAIN, "")]
every_image_family = parametrized(of_images)
every_image_case = parametrized(of_images + IMAGE_VARIANTS)


def smallest_of_each_size() -> list[str]:
    """Of each family of images, the preset with the fewest parameters for each size of images."""
    of_images = sorted(
        (entry for entry in MODELS.values() if entry.module.input_kind == "images"), key=lambda entry: -entry.parameters
    )
    return list({(entry.family, str(entry.defaults["img_size"])): entry.name for entry in of_images}.values())


@pytest.fixture(autouse=True)
def _own_networks() -> Iterator[None]:
    with all_registered():
        yield


def larger_size(case: Case, down: int, across: int) -> tuple[int, int]:
    """An image size that the network takes, larger than the tiny preset's by at least `down` and `across`."""
    model = tiny(case)
    height, width = (
        -(-(side + more) // step) * step
        for side, more, step in zip(model.image_shape[1:], (down, across), model.size_step, strict=True)
    )
    return height, width


def used_parameters(model: Network) -> dict[str, Tensor | None]:
    """Gradients of the parameters that learn and on which scores depend, by name."""
    unscored = tuple(f"{part}." for part in model.unscored_parts)
    return {n: p.grad for n, p in model.named_parameters() if p.requires_grad and not n.startswith(unscored)}


def tensors_of(features: Any) -> tuple[Tensor, ...]:
    return (features,) if isinstance(features, Tensor) else tuple(features)


# --- every network --------------------------------------------------------------------------------------------------


@every_case
def test_outputs_are_the_head_of_the_features_and_of_the_kind_that_is_stated(case: Case) -> None:
    model = tiny(case)
    assert model.output_kind in OUTPUT_KINDS and model.input_kind in INPUT_KINDS
    inputs = some_images(model)
    outputs, features = model(inputs), model.forward_features(inputs)
    assert fits(outputs, model, 3) and outputs.dtype == torch.float32 and outputs.isfinite().all()
    assert difference(outputs[0], outputs[1]) > 1e-6, "two inputs have two predictions"
    assert torch.equal(model(inputs), outputs), "eval is deterministic"
    assert torch.equal(model.forward_head(features), outputs)
    assert model.forward_head(features, pre_logits=True).shape[-1] == model.num_features
    assert model.get_classifier() is not None


@every_case
def test_an_empty_batch_has_no_outputs(case: Case) -> None:
    model = tiny(case)
    outputs = model(some_images(model)[:0])
    assert outputs.shape == (0, *model(some_images(model)).shape[1:])


@every_preset
def test_presets_are_described_and_have_as_many_parameters_as_they_declare(name: str) -> None:
    entry, model = get_model_entry(name), outline(name)
    assert entry.summary.endswith(".") and entry.link.startswith("https://")
    assert set(entry.arguments) <= set(entry.defaults)
    assert json.loads(json.dumps(entry.defaults)).keys() == entry.defaults.keys()
    assert sum(p.numel() for p in model.parameters()) == entry.parameters
    assert mereo.is_model(name) and name in mereo.list_models() and model.config["model"] == name
    assert model.pretrained_cfg["input_size"] == model.input_shape
    if model.input_kind == "images":
        first, classifier = model.default_cfg["first_conv"], model.default_cfg["classifier"]
        convolutions = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d)]
        assert first in convolutions[:1]
        assert model.get_submodule(first).in_channels == model.image_shape[0]
        assert model.get_submodule(classifier) is model.get_classifier()


@pytest.mark.long
@pytest.mark.parametrize("name", smallest_of_each_size())
def test_presets_take_images_of_their_size(name: str) -> None:
    model = outline(name).eval()
    assert fits(model(torch.empty(2, *model.image_shape, device="meta")), model, 2)


@pytest.mark.parametrize("family", sorted(families()))
def test_a_family_has_its_file_and_its_test(family: str) -> None:
    room, _, file = families()[family].module.__module__.removeprefix("mereo.models.").partition(".")
    home, tests = Path(mereo.models.__path__[0]), Path(__file__).parents[1] / "models"
    of_host = f'family="{family}"' in (home / room / f"{file}.py").read_text()
    assert of_host or (home / room / f"{family}.py").exists()
    assert "def test_" in (tests / room / f"test_{family}.py").read_text()


@pytest.mark.parametrize("family", sorted(families()))
def test_steps_of_an_iteration_are_bounded(family: str) -> None:
    """A million steps of routing run for hours: the constructor refuses them."""
    entry = families()[family]
    for name in (n for n in entry.defaults if n.endswith(("steps", "iterations"))):
        with pytest.raises(UsageError, match=name.removeprefix("routing_").removeprefix("block_")):
            outline(entry.name, **(dict(entry.tiny) | {name: 10**6}))


@pytest.mark.long
def test_rooms_go_by_what_a_network_can_do_not_by_its_class() -> None:
    networks = {entry.module.__name__ for entry in MODELS.values()} | {"OnBackbone", "PlainNetwork", "SequenceModel"}
    rooms = ("app", "cli", "explain", "export", "inference", "measure", "tasks", "training", "api")
    package = Path(mereo.__path__[0])
    for path in [*(file for room in rooms for file in (package / room).rglob("*.py")), package / "models/factory.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                asked = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                assert not asked & networks, f"{path}, line {node.lineno}"


@parametrized(TINY)
def test_a_network_imports_no_other(case: Case) -> None:
    homes = {entry.module.__module__ for entry in MODELS.values()}
    own = get_model_entry(case[0]).module
    imported: set[str] = set()
    for node in ast.walk(ast.parse(Path(inspect.getfile(own)).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    # `from mereo.models import ...` would import them all.
    forbidden = homes | {"mereo.models"} if own.__module__.startswith("mereo.") else homes
    assert not imported & (forbidden - {own.__module__})


@every_family
def test_checkpointing_changes_nothing(case: Case) -> None:
    models = [tiny(case).train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[1].set_grad_checkpointing()
    images = some_images(models[0])
    for model in models:
        torch.manual_seed(1)
        model(images).sum().backward()
    for (name, kept), again in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        if kept.grad is not None:
            torch.testing.assert_close(again.grad, kept.grad, msg=name)
    for kept, again in zip(models[0].buffers(), models[1].buffers(), strict=True):
        assert torch.equal(kept, again), "running statistics are updated once"


@every_family
def test_parameters_are_grouped_by_layer(case: Case) -> None:
    model = tiny(case)
    depths = model.layer_depths()
    assert depths.keys() == {name for name, _ in model.named_parameters()}
    first = f"{model.first_conv}.weight" if model.input_kind == "images" else next(iter(depths))
    assert depths[first] == 0
    assert sorted(set(depths.values())) == list(range(max(depths.values()) + 1))
    if not any(name.startswith(f"{model.classifier_parts[0]}.") for name in depths):
        return  # a head that shares the weights of another part
    heads = tuple(f"{part}." for part in model.classifier_parts)
    assert {name for name, depth in depths.items() if depth == max(depths.values())} == {
        name for name in depths if name.startswith(heads)
    }
    groups = model.parameter_groups(0.05, 0.5)
    learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert sorted(name for group in groups for name in group["names"]) == sorted(learned)
    for group in groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            assert group["lr_scale"] == 0.5 ** (max(depths.values()) - depths[name])
            vector = parameter.ndim <= 1 or name in model.no_weight_decay()
            assert group["weight_decay"] == (0.0 if vector else 0.05)
    assert model.no_weight_decay() <= depths.keys()
    torch.optim.SGD(groups, lr=0.1)


@every_case
def test_inputs_do_not_see_each_other(case: Case) -> None:
    model = tiny(case)
    images = some_images(model)
    together = model(images)
    for i in range(3):
        assert difference(model(images[i : i + 1]), together[i : i + 1]) < 1e-4


@every_family
def test_a_network_trains_after_inference(case: Case) -> None:
    model = tiny(case)
    images = some_images(model, 2)
    forget_kept_tensors()
    with torch.inference_mode():
        model(images)
    model.train()(images).sum().backward()
    assert any(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_case
def test_every_parameter_has_a_gradient_in_training(case: Case) -> None:
    model = tiny(case)
    drop_nothing(model)  # a residual branch that is left out has no gradients
    outputs = model.train()(some_images(model))
    ((outputs * torch.rand_like(outputs)).sum() + sum(added_losses(model).values())).backward()
    assert [n for n, g in used_parameters(model).items() if g is None or not g.any()] == []
    model.zero_grad()
    model.train()(torch.zeros_like(some_images(model, 2))).square().sum().backward()
    assert all(g is not None and g.isfinite().all() for g in used_parameters(model).values())


@every_case
def test_half_precision(case: Case) -> None:
    model = tiny(case)
    images = some_images(model)
    expected = model(images).detach()
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(images)
        scores.sum().backward()
    # A token that rounding sends to another cluster changes much.
    most = 0.2 if model.input_kind == "tokens" else 0.1
    assert difference(scores, expected) < most
    assert all(g is not None and g.isfinite().all() for g in used_parameters(model).values())
    scores = model.to(torch.bfloat16)(images.to(torch.bfloat16) if images.is_floating_point() else images)
    assert scores.dtype == torch.bfloat16
    assert difference(scores, expected) < most


@every_case
def test_recording_sees_the_couplings_and_signals_that_there_are(case: Case) -> None:
    model = tiny(case)
    watched = {name for name, m in model.named_modules() if isinstance(m, Coupling | Signal)}
    if watched:
        with mereo.record(model) as trace:
            model(some_images(model))
        assert set(trace) == watched


@pytest.mark.long
@every_costly_case
def test_compiles_to_one_graph(case: Case) -> None:
    model = tiny(case)
    images = some_images(model)
    torch.compiler.reset()
    with torch.no_grad():
        assert difference(torch.compile(model, fullgraph=True, backend="aot_eager")(images), model(images)) < 1e-4


@pytest.mark.long
@parametrized([case for case in EVERY if case not in of_images])
def test_exports_with_a_free_batch_size(case: Case) -> None:
    model = tiny(case)
    inputs = some_images(model)
    program = torch.export.export(model, (inputs,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for batch in (inputs[:1], torch.cat((inputs, inputs))):
        assert difference(program.module()(batch), model(batch)) < 1e-4


@every_case
def test_a_file_of_weights_needs_nothing_else(case: Case, tmp_path: Path) -> None:
    model = tiny(case)
    path = tmp_path / "folder" / "model.safetensors"
    mereo.save_weights(path, model, accuracy=0.5)
    loaded: Any = mereo.load(path)
    inputs = some_images(model)
    assert type(loaded) is type(model) and not loaded.training and torch.equal(loaded(inputs), model(inputs))
    assert loaded.config == model.config and loaded.pretrained_cfg == model.pretrained_cfg
    assert loaded.metadata["accuracy"] == 0.5
    again = mereo.create_model(case[0], checkpoint_path=path, **model.config["args"]).eval()
    assert torch.equal(again(inputs), model(inputs))
    assert difference(model.fuse()(inputs), model(inputs)) < 1e-4


@every_family
def test_arguments_that_it_does_not_have(case: Case) -> None:
    entry = get_model_entry(case[0])
    with pytest.raises(UsageError, match=r"argument of .*'dimm'"):
        mereo.create_model(case[0], dimm=3)
    for argument, value in {"num_classes": 3, "in_chans": 1, "img_size": 32}.items():
        if argument not in entry.defaults:
            with pytest.raises(UsageError, match=f"{argument} is {value}, and .* reads {entry.module.input_kind}"):
                mereo.create_model(case[0], **{argument: value})
    with pytest.raises(UsageError, match="registered twice"):
        register_model(case[0], entry.module, "Again.", source=entry.source, parameters=0, family=entry.family)


# --- networks of images ---------------------------------------------------------------------------------------------


@every_image_case
def test_without_classes_the_features_come_out(case: Case) -> None:
    model = tiny(case, num_classes=7)
    images = some_images(model)
    features = model.forward_features(images)
    flat = model.forward_head(features, pre_logits=True)
    assert flat.shape == (3, model.num_features) and model.head_hidden_size == model.num_features
    model.reset_classifier(0)
    assert torch.equal(model(images), flat)


@every_image_case
def test_classes_channels_and_size_are_free(case: Case) -> None:
    height, width = larger_size(case, 8, 3)
    model = tiny(case, num_classes=3, in_chans=4, img_size=(height, width))
    assert model.image_shape == model.pretrained_cfg["input_size"] == (4, height, width)
    assert fits(model(some_images(model)), model, 3)
    assert model.pretrained_cfg["num_classes"] == model.num_classes == 3
    assert len(model.pretrained_cfg["mean"]) == len(model.pretrained_cfg["std"]) == 4


@every_image_case
def test_images_of_another_shape(case: Case) -> None:
    model = tiny(case)
    channels, height, width = model.image_shape
    for shape in ((2, channels + 1, height, width), (channels, height, width)):
        with pytest.raises(UsageError, match=r"images are .*create the model with other in_chans"):
            model(torch.rand(shape))
    with pytest.raises(UsageError, match=r"images are torch.uint8; .*float\(\) / 255"):
        model(torch.zeros(2, *model.image_shape, dtype=torch.uint8))
    step, larger = model.size_step[0], torch.rand(2, channels, height + 1, width)
    if model.fixed_input_size:
        with pytest.raises(UsageError, match=f"images are .*{height}, {width}"):
            model(larger)
        return
    if step > 1:
        with pytest.raises(UsageError, match=f"heights must be multiples of {step}.* {height} or {height + step}"):
            model(larger)
    assert model(torch.rand(2, channels, height + step, width)).shape[:2] == (2, model.num_classes)


@every_image_case
def test_reset_classifier_starts_the_classes_anew_and_nothing_else(case: Case) -> None:
    model = tiny(case)
    images = some_images(model)
    before, head = tensors_of(model.forward_features(images)), model.get_classifier()
    model.class_names = tuple("abcdefghij"[: model.num_classes])
    for num_classes in (num for num in (7, 0, 3) if num != model.num_classes):
        model.reset_classifier(num_classes)
        assert model.num_classes == model.pretrained_cfg["num_classes"] == num_classes
        assert model.config["args"]["num_classes"] == num_classes and model.class_names == ()
        after = tensors_of(model.forward_features(images))
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        assert model.get_classifier() is not head and not any(m.training for m in model.modules())
        outputs = model(images)
        assert fits(outputs, model, 3) if num_classes else outputs.shape == (3, model.num_features)
    fresh = tiny(case, num_classes=3)
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in fresh.state_dict().items()}


@every_image_family
def test_reset_classifier_keeps_type_and_mode_and_refuses_nonsense(case: Case) -> None:
    model = tiny(case).double()
    model.reset_classifier(3, "")
    assert model(some_images(model).double()).dtype == torch.float64
    assert not model.get_classifier().training and model.train().reset_classifier(4) is None
    assert model.get_classifier().training
    with pytest.raises(UsageError, match="num_classes is -1"):
        model.reset_classifier(-1)
    with pytest.raises(UsageError, match="global_pool is 'nonsense'"):
        model.reset_classifier(3, "nonsense")
    assert model.num_classes == 4


@every_image_case
def test_capsule_classifiers_have_poses_behind_their_scores(case: Case) -> None:
    model = tiny(case)
    images = some_images(model)
    assert model.has_capsules == isinstance(model, CapsuleClassifier)
    capsules = model.capsules(images)
    if not model.has_capsules:
        assert capsules is None
        return
    assert isinstance(capsules, Capsules) and capsules._fields == ("pose", "activation")
    assert capsules.pose.shape[:2] == capsules.activation.shape == (3, model.num_classes)
    assert torch.equal(capsules.activation, model(images))
    if model.scores_are_lengths:
        assert (capsules.activation > 0).all() and (capsules.activation <= 1 + 1e-6).all()
        torch.testing.assert_close(capsules.pose.norm(dim=-1), capsules.activation, rtol=1e-3, atol=4e-4)
    if model.decoder is None:
        with pytest.raises(UsageError, match="without a decoder"):
            model.reconstruct(capsules)
    else:
        image = model.reconstruct(capsules)
        assert image.shape == (3, *model.image_shape) and (image > 0).all() and (image < 1).all()
        assert torch.equal(image, model.reconstruct(capsules, capsules.activation.argmax(1)))
        assert not torch.equal(image, model.reconstruct(capsules, capsules.activation.argmin(1)))
    model.reset_classifier(0)
    assert model.decoder is None
    with pytest.raises(UsageError, match="num_classes is 0"):
        model.capsules(images)


@every_image_case
def test_maps_of_stages(case: Case) -> None:
    model = tiny(case)
    images = some_images(model)
    features, maps = model.forward_intermediates(images)
    assert torch.equal(model.forward_head(features), model(images))
    for info, found in zip(model.feature_info, maps, strict=True):
        assert found.shape[:2] == (3, info["num_chs"])
        for side, of_image in zip(found.shape[2:], model.image_shape[1:], strict=True):
            # Convolutions without padding lose a border.
            assert side <= -(-of_image // info["reduction"])
    seen = {}
    for info in model.feature_info:
        module = model.get_submodule(info["module"])
        module.register_forward_hook(lambda _m, _i, out, name=info["module"]: seen.__setitem__(name, out))
    model(images)
    for info, found in zip(model.feature_info, maps, strict=True):
        made = model.as_map(seen[info["module"]], norm=False)
        torch.testing.assert_close(made.relu(), found.relu(), msg="the module makes the map")
    (last,) = model.forward_intermediates(images, 1, stop_early=True, output_fmt="NLC", intermediates_only=True)
    assert torch.equal(last, maps[-1].flatten(2).mT)


@every_image_family
def test_a_backbone_gives_maps_and_runs_no_later_stage(case: Case) -> None:
    name, _ = case
    entry = get_model_entry(name)
    backbone = mereo.create_model(name, features_only=True, out_indices=(0,), **(entry.tiny or {})).eval()
    assert isinstance(backbone, FeatureMaps) and backbone.model.num_classes == 0
    images = some_images(backbone.model)
    (found,) = backbone(images)
    assert backbone.feature_info.channels() == [found.shape[1]]
    assert backbone.feature_info.reduction() == [backbone.model.feature_info[0]["reduction"]]
    assert torch.equal(found, backbone.model.forward_intermediates(images, [0], intermediates_only=True)[0])
    with pytest.raises(UsageError, match=r"indices is .*9"):
        mereo.create_model(name, features_only=True, out_indices=(9,), **(entry.tiny or {}))
    with pytest.raises(UsageError, match="out_indices"):
        mereo.create_model(name, out_indices=(0,))


@every_image_family
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_one_image_are_those_in_a_batch(case: Case, memory_format: torch.memory_format) -> None:
    # PyTorch's batch normalisation returns others where its gradient comes in another memory layout.
    model = tiny(case).double()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=memory_format)
    images = some_images(model, 2).double().contiguous(memory_format=memory_format)

    def gradient(images: Tensor) -> Tensor:
        images = images.detach().clone().requires_grad_()
        scores = model(images).flatten(1)
        (scores * torch.linspace(-1, 1, scores.shape[1], dtype=scores.dtype)).sum().backward()
        assert images.grad is not None
        return images.grad

    expected = gradient(images)[:1]
    assert (gradient(images[:1]) - expected).abs().max() <= 1e-8 * expected.abs().max()


@every_image_family
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of an operation of PyTorch
def test_gradients_of_each_image_in_one_pass(case: Case) -> None:
    model = tiny(case).double()
    images, state = some_images(model, 2).double(), {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def gradient(image: Tensor) -> dict[str, Tensor]:
        learned = {name: value.detach() for name, value in state.items() if value.requires_grad}

        def loss(learned: dict[str, Tensor]) -> Tensor:
            scores: Tensor = functional_call(model, {**state, **learned}, (image.unsqueeze(0),)).flatten()
            return (scores * torch.linspace(-1, 1, len(scores), dtype=scores.dtype)).sum()

        return grad(loss)(learned)

    together, alone = vmap(gradient)(images), gradient(images[0])
    largest = max(float(each.abs().max()) for each in alone.values())
    assert largest > 0
    for name, each in alone.items():
        assert (together[name][0] - each).abs().max() <= 1e-8 * largest, name


@every_image_case
@pytest.mark.parametrize("size", [0.0, 1e4, 1e30])
def test_blank_and_huge_images_give_finite_scores_and_gradients(case: Case, size: float) -> None:
    model = tiny(case)
    images = (torch.rand(2, *model.image_shape) * size).requires_grad_()
    scores = model(images)
    scores.sum().backward()
    assert scores.isfinite().all() and images.grad is not None and images.grad.isfinite().all()
    assert [n for n, g in used_parameters(model).items() if g is None or not g.isfinite().all()] == []


@every_family
def test_copies_made_while_watched_or_changed_are_plain(case: Case) -> None:
    model = tiny(case)
    images = some_images(model, 2)
    expected = model(images)
    with mereo.record(model) as trace:
        model(images)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with mereo.intervene(model, dict.fromkeys(trace, torch.zeros_like)):
        copies += [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        fused = model.fuse()
    assert not any(m.observers for each in (*copies, fused) for m in each.modules() if isinstance(m, Coupling | Signal))
    assert all(torch.equal(each(images), expected) for each in copies)
    with torch.no_grad():
        once, twice = fused(images), fused.fuse()(images)
        assert difference(once, expected) < 1e-4 and torch.equal(twice, once)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_docstring_without_its_papers_equations_is_marked_as_a_reconstruction(name: str) -> None:
    entry = get_model_entry(name)
    check_reconstruction(entry.module, entry.reconstruction)


@every_image_case
def test_weights_are_contiguous_for_files_and_the_layout_of_convolutions_changes_nothing(case: Case) -> None:
    model = tiny(case)
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    other, images = copy.deepcopy(model), some_images(model)
    lay_out(other, torch.channels_last)
    assert difference(model(images), other(images)) < 1e-4


@every_image_family
def test_maps_have_the_layout_that_suits_the_network(case: Case) -> None:
    model, maps = tiny(case), []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda module, _, output: maps.append(output))
    model(some_images(model).contiguous())
    layout = torch.channels_last if model.channels_last else torch.contiguous_format
    assert maps and all(each.is_contiguous(memory_format=layout) for each in maps)


@pytest.mark.long
@every_image_family
def test_exports_with_a_free_batch_size_to_onnx(case: Case) -> None:
    model = tiny(case)
    images = some_images(model)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    batches = (images[:1], torch.cat((images, images)))
    for batch in batches:
        assert difference(program.module()(batch), model(batch)) < 1e-4
    onnxruntime = pytest.importorskip("onnxruntime")
    file = BytesIO()
    torch.onnx.export(program, dynamo=True, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (slot,) = session.get_inputs()
    for batch in batches:
        (scores,) = session.run(None, {slot.name: batch.numpy()})
        assert difference(torch.from_numpy(scores), model(batch)) < 1e-4


@every_image_case
def test_saved_weights_keep_classes_and_size(case: Case, tmp_path: Path) -> None:
    model = tiny(case, num_classes=3, img_size=larger_size(case, 2, 5))
    path = tmp_path / "folder" / "model.safetensors"
    mereo.save_weights(path, model, class_names=("cat", "dog", "eel"), accuracy=0.5)
    loaded = mereo.load(path)
    images = some_images(model)
    assert not loaded.training and torch.equal(loaded(images), model(images))
    assert loaded.class_names == ("cat", "dog", "eel") and loaded.metadata["accuracy"] == 0.5
    assert loaded.config == model.config and loaded.pretrained_cfg == model.pretrained_cfg


@every_image_family
def test_a_reset_model_can_be_saved(case: Case, tmp_path: Path) -> None:
    model = tiny(case)
    model.reset_classifier(4)
    mereo.save_weights(tmp_path / "w.safetensors", model)
    loaded = mereo.load(tmp_path / "w.safetensors")
    assert torch.equal(loaded(images := some_images(model)), model(images))
    assert loaded.pretrained_cfg["num_classes"] == 4
