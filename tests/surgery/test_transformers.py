"""Networks of Hugging Face, whose attention is called by keywords and returns a pair, are changed as ours."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.surgery import linearise

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
KINDS = {"vit": ("ViTConfig", "ViTForImageClassification"), "clip": ("CLIPVisionConfig", "CLIPVisionModel")}
LAYERS = {"vit": "vit.layers.{}.attention", "clip": "encoder.layers.{}.self_attn"}
SURGERIES: dict[str, tuple[Callable[[nn.Module], nn.Module], bool]] = {
    "watchable": (mereo.watchable, True),
    "moh": (lambda model: mereo.moh(model, shared=1), False),
    "sea": (lambda model: mereo.sea(model, columns=8, top_k=4), False),
    "sparsifiner": (lambda model: mereo.sparsifiner(model, tokens=17), False),
    # A radius beyond the diagonal leaves no token out.
    "linearise": (lambda model: linearise(model, radius=9, grid=(4, 4), text_tokens=1), True),
}
"""What exchanges attention, and whether it then computes the same."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(kind: str) -> nn.Module:
    config, network = (getattr(transformers, name) for name in KINDS[kind])
    torch.manual_seed(0)
    made: nn.Module = network(config(**SIZES, image_size=32, patch_size=8)).eval()
    return made


def answer(model: nn.Module, images: Tensor) -> Tensor:
    out = model(images)
    found: Tensor = out["logits" if "logits" in out else "pooler_output"]
    return found


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("where", "place"), [("stages", ""), ("blocks", "attention"), ("attention", "attention")])
def test_places_are_found_and_computed_as_before(kind, model, images, where, place):
    before = answer(model, images)
    done = mereo.insert(model, "aaren", where)
    layers = [LAYERS[kind].format(number) for number in range(2)]
    assert list(done.places) == [layer if place else layer.rpartition(".")[0] for layer in layers]
    torch.testing.assert_close(answer(model, images), before, rtol=0, atol=0)
    mereo.remove(model)
    torch.testing.assert_close(answer(model, images), before, rtol=0, atol=0)


def test_a_mechanism_replaces_attention_twice_over(kind, model, images):
    mereo.insert(model, "multi_head", "attention", replace=True, heads=2)
    mereo.insert(model, "sparsifiner", LAYERS[kind].format(0), replace=True)
    mereo.insert(model, "talking_heads", LAYERS[kind].format(1), replace=True, heads=2)
    layers = [LAYERS[kind].format(number).rpartition(".")[0] for number in range(2)]
    assert list(mereo.insert(model, "aaren", "stages").places) == layers
    answer(model.train(), images).sum().backward()
    layer = model.get_submodule(LAYERS[kind].format(0))
    assert any(p.grad is not None and bool(p.grad.any()) for p in layer.parameters())


def test_a_mechanism_that_keeps_the_weights_of_the_layer_finds_them(kind, model):
    weight = model.get_submodule(LAYERS[kind].format(1)).q_proj.weight
    mereo.insert(model, "sparsifiner", "attention", replace=True)
    assert any(each is weight for each in model.parameters())


@pytest.mark.parametrize(("change", "same"), SURGERIES.values(), ids=SURGERIES)
def test_surgeries_keep_weights_and_names(model, images, change, same):
    before = answer(model, images)
    changed = change(model).eval()
    torch.testing.assert_close(answer(model, images), before, rtol=0, atol=0)
    state = changed.state_dict()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0)
    with mereo.record(changed) as records:
        after = answer(changed, images)
    assert len(records) >= 2 and after.shape == before.shape
    assert torch.allclose(after, before, rtol=1e-5, atol=1e-5) == same


def test_a_student_learns_from_the_dense_network(model, images):
    teacher, student = mereo.watchable(model), mereo.sea(model, columns=8, top_k=4)
    done = mereo.distil(teacher, student, images, mereo.sea_matches(student), epochs=6, batch_size=2, lr=1e-4)
    assert done.history[-1]["loss"] < done.history[0]["loss"]


def test_what_the_trainer_adds_is_left_to_the_loss(model, images):
    changed = mereo.watchable(model)
    expected = answer(changed, images)
    out = changed(images, num_items_in_batch=torch.tensor(2))
    torch.testing.assert_close(out["logits" if "logits" in out else "pooler_output"], expected)


def test_exported_programs_compute_the_same(model, images):
    changed = mereo.moh(model).eval()
    mereo.insert(changed, "squeeze_excite", start=1.0)
    exported = torch.export.export(changed, (images,)).module()
    torch.testing.assert_close(answer(exported, images), answer(changed, images))


def test_a_layer_with_a_mask_is_refused(images):
    config = transformers.CLIPTextConfig(**SIZES, vocab_size=20, max_position_embeddings=8)
    model = mereo.watchable(transformers.CLIPTextModel(config).eval())
    with pytest.raises(UsageError, match="a mask or positions"):
        model(torch.randint(20, (1, 5)), attention_mask=torch.tensor([[1, 1, 1, 0, 0]]))


def test_a_network_stays_as_it_was_where_a_mechanism_does_not_fit(images):
    config = transformers.SiglipVisionConfig(**SIZES, image_size=32, patch_size=8)
    model = transformers.SiglipVisionModel(config).eval()
    before, names = answer(model, images), [*model.state_dict()]
    # The head attends from a learned token to the patches.
    with pytest.raises(UsageError, match=r"head\.attention of SiglipVisionModel.*the network is as it was"):
        mereo.insert(model, "talking_heads", "attention", replace=True)
    assert [*model.state_dict()] == names
    torch.testing.assert_close(answer(model, images), before, rtol=0, atol=0)


def test_layers_that_compute_something_else_are_refused():
    config = transformers.SwinConfig(image_size=32, patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=4)
    with pytest.raises(UsageError, match="SwinAttention that computes something else"):
        mereo.watchable(transformers.SwinModel(config))
