"""Networks of transformers and with attention of PyTorch, which is called in its own way, are changed as ours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.sparse.sea import SeaAttention
from mereo.mechanisms.gate import SqueezeExcite
from mereo.surgery import linearise
from mereo.surgery.inserted import Inserted, Replaced
from mereo.surgery.sea import set_top_k

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


class Encoder(nn.Module):
    """A network as a user writes it around PyTorch's own encoder."""

    def __init__(self, batch_first: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.image_size = 32
        self.patches, self.first = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.zeros(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout, batch_first=batch_first, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).mT
        tokens = torch.cat([self.first.expand(len(patches), -1, -1), patches], 1)
        if self.encoder.layers[0].self_attn.batch_first:  # type: ignore[union-attr]
            return self.head(self.encoder(tokens)[:, 0])
        return self.head(self.encoder(tokens.transpose(0, 1))[0])


def of_transformers(config: str, network: str) -> nn.Module:
    library = pytest.importorskip("transformers")
    made: nn.Module = getattr(library, network)(getattr(library, config)(**SIZES, image_size=32, patch_size=8))
    return made


def of_torchvision() -> nn.Module:
    model = pytest.importorskip("torchvision").models.VisionTransformer(32, 8, 2, 4, 16, 32, num_classes=5)
    nn.init.normal_(model.heads.head.weight)  # which starts at zero
    return model


KINDS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "vit": (lambda: of_transformers("ViTConfig", "ViTForImageClassification"), "vit.layers.{}.attention"),
    "clip": (lambda: of_transformers("CLIPVisionConfig", "CLIPVisionModel"), "encoder.layers.{}.self_attn"),
    "torchvision": (of_torchvision, "encoder.layers.encoder_layer_{}.self_attention"),
    "encoder": (lambda: Encoder(True), "encoder.layers.{}.self_attn"),
    "tokens first": (lambda: Encoder(False), "encoder.layers.{}.self_attn"),
}
"""Networks, and the names of their layers of attention."""
LAYERS = {kind: layers for kind, (_, layers) in KINDS.items()}
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
    torch.manual_seed(0)
    return KINDS[kind][0]().eval()


def answer(model: nn.Module, images: Tensor) -> Tensor:
    return scores(model(images))


def scores(out: Any) -> Tensor:
    found: Tensor = out if isinstance(out, Tensor) else out["logits" if "logits" in out else "pooler_output"]
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
    layer = model.get_submodule(LAYERS[kind].format(1))
    weight = layer.in_proj_weight if isinstance(layer, nn.MultiheadAttention) else layer.q_proj.weight
    mereo.insert(model, "sparsifiner", "attention", replace=True)
    assert any(each is weight for each in model.parameters())


@pytest.mark.parametrize(("change", "same"), SURGERIES.values(), ids=SURGERIES)
def test_surgeries_keep_weights_and_names(model, images, change, same):
    before = answer(model, images)
    changed = change(model)
    assert not any(module.training for module in changed.modules())
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


@pytest.mark.parametrize("kind", ["vit", "clip"], indirect=True)
def test_what_the_trainer_adds_is_left_to_the_loss(model, images):
    changed = mereo.watchable(model)
    expected = answer(changed, images)
    torch.testing.assert_close(scores(changed(images, num_items_in_batch=torch.tensor(2))), expected)


def test_exported_programs_compute_the_same(model, images):
    changed = mereo.moh(model).eval()
    mereo.insert(changed, "squeeze_excite", start=1.0)
    exported = torch.export.export(changed, (images,)).module()
    torch.testing.assert_close(answer(exported, images), answer(changed, images))


def test_a_layer_with_a_mask_is_refused(images):
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPTextConfig(**SIZES, vocab_size=20, max_position_embeddings=8)
    model = mereo.watchable(transformers.CLIPTextModel(config).eval())
    with pytest.raises(UsageError, match="a mask or positions"):
        model(torch.randint(20, (1, 5)), attention_mask=torch.tensor([[1, 1, 1, 0, 0]]))


def test_a_network_stays_as_it_was_where_a_mechanism_does_not_fit(images):
    transformers = pytest.importorskip("transformers")
    config = transformers.SiglipVisionConfig(**SIZES, image_size=32, patch_size=8)
    model = transformers.SiglipVisionModel(config).eval()
    before, names = answer(model, images), [*model.state_dict()]
    # The head attends from a learned token to the patches.
    with pytest.raises(UsageError, match=r"head\.attention of SiglipVisionModel.*the network is as it was"):
        mereo.insert(model, "talking_heads", "attention", replace=True)
    assert [*model.state_dict()] == names
    torch.testing.assert_close(answer(model, images), before, rtol=0, atol=0)


def test_layers_that_compute_something_else_are_refused():
    transformers = pytest.importorskip("transformers")
    config = transformers.SwinConfig(image_size=32, patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=4)
    with pytest.raises(UsageError, match="SwinAttention that computes something else"):
        mereo.watchable(transformers.SwinModel(config))


def test_images_of_a_batch_stay_apart_where_tokens_come_first(images):
    model = Encoder(False).eval()
    mereo.insert(model, "self_attention", start=1.0)
    mereo.insert(model, "talking_heads", "attention", replace=True)
    changed = mereo.watchable(Encoder(False).eval())
    for each in (model, changed):
        torch.testing.assert_close(each(images)[:1], each(images[:1]))
    with mereo.record(changed) as records:
        changed(images)
    assert {tuple(each.shape) for each in records.values()} == {(2, 4, 17, 17)}


def test_any_layer_whose_tokens_come_first_is_replaced(images):
    model = Encoder(False).eval()
    mereo.insert(model, "talking_heads", "encoder.layers.*.norm1", replace=True)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


SWIN = {"img_size": 32, "window_size": 4, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}


@pytest.mark.parametrize("width", [12, 8])  # of 12 channels, and of as many as there are rows
@pytest.mark.parametrize("replace", [False, True])
def test_maps_with_the_channels_last_are_turned(images, replace, width):
    timm = pytest.importorskip("timm")
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=4, embed_dim=width, **SWIN).eval()
    places = ["layers.0.blocks.0.norm2"] if replace else "stages"
    expected = model(images)
    done = mereo.insert(model, "squeeze_excite", places, replace=replace)
    assert len(done.places) == (1 if replace else 4)
    gate = next(each for each in model.modules() if isinstance(each, SqueezeExcite))
    assert next(gate.parameters()).shape[1] == width, "it weighs the channels"
    added = next(each for each in model.modules() if isinstance(each, (Inserted, Replaced)))
    assert added.layout == ("tokens" if replace else "channels last")
    assert torch.equal(model(images), expected) != replace
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


@pytest.mark.parametrize("batch_first", [True, False])
def test_dropout_does_not_act_in_a_copy_of_an_evaluated_network(images, batch_first):
    model = Encoder(batch_first, dropout=0.5).eval()
    torch.testing.assert_close(mereo.watchable(model)(images), model(images))
    drawn = mereo.watchable(model.train())(images)
    assert not torch.allclose(drawn, mereo.watchable(model)(images))


@pytest.mark.parametrize("change", [mereo.watchable, mereo.sigma_reparam])
def test_surgeries_on_attention_of_pytorch_follow_each_other(images, change):
    model = Encoder(True).eval()
    changed = change(mereo.watchable(mereo.moh(model, active=1.0, shared=1)))
    torch.testing.assert_close(changed(images), mereo.moh(model, active=1.0, shared=1)(images), rtol=1e-4, atol=1e-4)


def test_attention_that_reads_other_tokens_stays():
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True).eval()
    changed = mereo.watchable(model)
    assert isinstance(changed.decoder.layers[0].multihead_attn, nn.MultiheadAttention)
    memory, tokens = torch.rand(2, 5, 16), torch.rand(2, 7, 16)
    torch.testing.assert_close(changed(memory, tokens), model(memory, tokens))
    with pytest.raises(UsageError, match="is given attn_mask besides its tokens"):
        changed(memory, tokens, tgt_mask=torch.zeros(7, 7))
    with pytest.raises(UsageError, match="is given key_padding_mask besides its tokens"):
        changed(memory, tokens, src_key_padding_mask=torch.zeros(2, 5))


def test_calls_that_a_replaced_layer_cannot_answer_are_named():
    layer = mereo.watchable(nn.MultiheadAttention(16, 4, batch_first=True))
    tokens, others = torch.rand(2, 5, 16), torch.rand(2, 5, 16)
    assert layer(tokens, tokens, tokens)[1] is None
    with pytest.raises(UsageError, match="keys or values that are not its queries"):
        layer(tokens, others, others)
    with pytest.raises(UsageError, match="is_causal=True"):
        layer(tokens, tokens, tokens, is_causal=True)
    one = tokens[0]
    with pytest.raises(UsageError, match=r"tokens \(5, 16\); it takes a batch"):
        layer(one, one, one)


def test_attention_with_keys_of_another_width_is_refused():
    with pytest.raises(UsageError, match="without self-attention"):
        mereo.watchable(nn.MultiheadAttention(16, 4, kdim=8, vdim=8))
    with pytest.raises(UsageError, match="without self-attention"):
        mereo.watchable(nn.MultiheadAttention(16, 4, add_bias_kv=True))


class Maps(nn.Module):
    """An encoder as networks for segmentation have one: it lists maps of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Conv2d(c, 8, 3, 2, 1), nn.ReLU()) for c in (3, 8))

    def forward(self, images: Tensor) -> list[Tensor]:
        first = self.first(images)
        return [first, self.second(first)]


class Segmenter(nn.Module):
    """A network for masks, with a config of its own that cannot be set."""

    def __init__(self) -> None:
        super().__init__()
        self.image_size = 32
        self.encoder = Maps()
        self.decoder = nn.Sequential(nn.ConvTranspose2d(8, 8, 4, 4), nn.ReLU())
        self.segmentation_head = nn.Sequential(nn.Conv2d(8, 2, 1))

    @property
    def config(self) -> dict[str, Any]:
        return {"classes": 2}

    def forward(self, images: Tensor) -> Tensor:
        masks: Tensor = self.segmentation_head(self.decoder(self.encoder(images)[-1]))
        return masks


def test_an_encoder_that_lists_maps_has_stages_and_the_head_of_a_network_is_none(images):
    model = Segmenter().eval()
    expected = model(images)
    done = mereo.insert(model, "squeeze_excite", "stages")
    assert done.places == ("encoder.first", "encoder.second", "decoder")
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
    mereo.remove(model)
    assert model.config == {"classes": 2}


def test_convolutional_networks_of_transformers_have_stages_and_blocks():
    library = pytest.importorskip("transformers")
    config = library.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")
    model = library.ResNetForImageClassification(config)
    stages = "resnet.encoder.stages"
    assert mereo.insert(model, "ela", "stages", img_size=32).places == (f"{stages}.0", f"{stages}.1")
    branches = tuple(f"{stages}.{i}.layers.{j}.layer" for i, j in ((0, 0), (1, 0), (1, 1)))
    assert mereo.insert(model, "ela", "blocks", img_size=32).places == branches


def test_another_number_of_keys_is_not_noted_in_the_config_of_another_library(images):
    model = mereo.sea(of_transformers("ViTConfig", "ViTForImageClassification"))
    set_top_k(model, 2.0)
    assert all(layer.top_k == 2.0 for layer in model.modules() if isinstance(layer, SeaAttention))


class Attend(nn.Module):
    """What a layer gives its queries, keys and values to."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


class OwnAttention(nn.Module):
    """Attention as a user writes it, with one layer for queries, keys and values."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.to_qkv, self.attend = nn.Linear(12, 36), Attend() if apart else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).unflatten(-1, (6, 6)).transpose(1, 2).chunk(3, 1)
        values = self.attend(q, k, v) if self.attend else (q @ k.mT).softmax(-1) @ v
        return values.transpose(1, 2).flatten(2)


class OwnTransformer(nn.Module):
    """Layers of attention and MLPs that are added in turn, on patches of pixels."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.image_size, self.mix = 32, nn.Conv2d(192, 12, 1)
        self.layers = nn.ModuleList(nn.ModuleList([OwnAttention(apart), nn.Linear(12, 12)]) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.mix(nn.functional.pixel_unshuffle(images, 8)).flatten(2).mT
        for attention, mlp in self.layers:  # type: ignore[misc]
            x = x + attention(x)
            x = x + mlp(x)
        return x.mean(1)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("where", ["blocks", "attention"])
def test_attention_that_a_user_wrote_is_found_by_its_source(images, where, apart):
    model = OwnTransformer(apart).eval()
    expected = model(images)
    done = mereo.insert(model, "ela", where)
    assert done.places == ("layers.0.0", "layers.1.0")
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
    mereo.remove(model)
    mereo.insert(model, "talking_heads", where, replace=True, heads=3)
    assert not torch.allclose(model(images), expected)
    assert sum(isinstance(each, Replaced) for each in model.modules()) == 2


class AttentionWithCouplings(nn.Module):
    """Attention that returns its couplings as well, as DINO's does, and keeps them with their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = 2, nn.Linear(12, 36), nn.Linear(12, 12)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        self.kept = couplings = (q @ k.mT * 6**-0.5).softmax(-1)
        return self.proj((couplings @ v).transpose(1, 2).flatten(2)), couplings


class TransformerWithCouplings(nn.Module):
    """Attention to patches of pixels, and to a token before them."""

    def __init__(self) -> None:
        super().__init__()
        self.image_size, self.mix, self.first = 32, nn.Conv2d(192, 12, 1), nn.Parameter(torch.randn(1, 1, 12))
        self.blocks = nn.ModuleList(AttentionWithCouplings() for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.mix(nn.functional.pixel_unshuffle(images, 8)).flatten(2).mT
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            out, _ = block(x)
            x = x + out
        return x[:, 0]


def test_attention_that_returns_its_couplings_is_replaced(images):
    torch.manual_seed(0)
    model = TransformerWithCouplings().eval()
    expected = model(images)
    with mereo.record(model) as before:
        model(images)
    changed = mereo.watchable(model)
    with mereo.record(changed) as after:
        torch.testing.assert_close(changed(images), expected)
    torch.testing.assert_close(dict(after), dict(before))
    assert model.blocks[0].kept.requires_grad
    again = mereo.sea(mereo.moh(changed))
    assert again(images).shape == expected.shape
    mereo.insert(model, "talking_heads", "attention", replace=True, heads=2)
    assert not torch.allclose(model(images), expected)


def test_maps_of_a_network_with_a_token_before_its_patches_are_drawn(images):
    torch.manual_seed(0)
    model = TransformerWithCouplings().eval()
    model.pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.25,) * 3}
    with pytest.raises(UsageError, match=r"has no stages; give names of modules, such as network\.blocks\.1"):
        assert mereo.explain(model, images, method="gradcam").saliency
    maps = mereo.explain(model, images, method="gradcam", layers=["network.blocks.0.qkv"]).saliency["gradcam"]
    assert maps.shape == (len(images), 32, 32) and maps.amax() > 0


class BlockChunk(nn.ModuleList):
    """Blocks that run one after another, as DINOv2 lists them."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return x


class Chunked(nn.Module):
    """A vision transformer with DINOv2's names."""

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens, self.num_register_tokens = 1, 2
        self.patch_embed = PatchEmbed(32, 8, 3, 12)
        self.cls_token, self.register_tokens = nn.Parameter(torch.randn(1, 1, 12)), nn.Parameter(torch.randn(1, 2, 12))
        self.blocks = nn.ModuleList([BlockChunk([Block(12, 2), Block(12, 2)])])

    def forward(self, images: Tensor) -> Tensor:
        before = torch.cat([self.cls_token, self.register_tokens], 1).expand(len(images), -1, -1)
        return self.blocks[0](torch.cat([before, self.patch_embed(images)], 1))[:, 0]


def test_blocks_in_chunks_and_registers_are_known(images):
    torch.manual_seed(0)
    model = Chunked().eval()
    expected = model(images)
    torch.testing.assert_close(mereo.sparsifiner(model, keep=1.0)(images), expected)
    assert mereo.insert(model, "ela", "blocks").places == ("blocks.0.0.attn", "blocks.0.1.attn")
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
