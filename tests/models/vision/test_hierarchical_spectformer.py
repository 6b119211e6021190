"""SpectFormer, hierarchical: its class block and heads, sizes of stages, and the authors' names."""

from typing import Any

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.mixer import SpectralGating
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.registry import outline
from mereo.models.vision.hierarchical_spectformer import HierarchicalSpectFormer, _ClassBlock

TINY: dict[str, Any] = {
    "img_size": 40, "num_classes": 5, "widths": (6, 8, 8, 12), "depths": (1, 1, 2, 1), "num_heads": (1, 1, 2, 2),
    "ratios": (2, 2, 2, 2), "stem_width": 4,
}  # fmt: skip


def tiny(**changes: Any) -> HierarchicalSpectFormer:
    model = mereo.create_model("spectformer_h_small", **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert isinstance(model, HierarchicalSpectFormer)
    return model.eval()


def test_scores_add_half_the_largest_score_of_a_token() -> None:
    model, images = tiny(), torch.rand(3, 3, 40, 40)
    features = model.forward_features(images)
    assert features.shape == (3, 1 + 4, 12) and model.token_scores(features).shape == (3, 4, 5)
    difference = model(images) - model.head(features[:, 0])
    torch.testing.assert_close(difference, 0.5 * model.token_scores(features).max(1).values)
    plain = tiny(token_labels=False)
    torch.testing.assert_close(plain(images), plain.head(plain.forward_features(images)[:, 0]))
    with pytest.raises(UsageError, match="token_labels is False"):
        plain.token_scores(features)


def test_token_labels_mix_embeddings_and_unmix_scores() -> None:
    model, box = tiny(drop_path_rate=0.0).train(), (0, 1, 1, 2)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    images = torch.rand(2, 3, 40, 64)  # maps of 10 x 16 cells, 2 x 2 tokens
    output = model.token_labels(images, box)
    first = model.stages[0]
    mixed = first.downsample(images)
    maps = mixed.clone()
    maps[:, :, 0:8, 8:16] = mixed.flip(0)[:, :, 0:8, 8:16]
    maps = first.norm(first.blocks(maps))
    for stage in model.stages[1:]:
        maps = stage(maps)
    features = model.neck([maps])
    torch.testing.assert_close(output.classes, model.head(features[:, 0]))
    tokens = model.token_head(features[:, 1:]).clone()
    tokens[:, 1] = tokens[:, 1].flip(0)
    torch.testing.assert_close(output.tokens, tokens)
    assert output.box == box and 0 <= model.token_labels(images).box[0] <= 2


def test_in_eval_nothing_is_mixed_and_wrong_boxes_are_refused() -> None:
    model, images = tiny(), torch.rand(2, 3, 40, 40)
    output = model.token_labels(images, (0, 0, 2, 2))
    assert output.box == (0, 0, 0, 0)
    torch.testing.assert_close(output.classes + 0.5 * output.tokens.amax(1), model(images))
    with pytest.raises(UsageError, match=r"box is \(0, 0, 3, 1\); .* of 2 x 2 tokens"):
        model.train().token_labels(images, (0, 0, 3, 1))
    with pytest.raises(UsageError, match="token_labels is False"):
        tiny(token_labels=False).token_labels(images)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("spectformer_h_small", 21_777_928),
        ("spectformer_h_base", 32_539_880),
        ("spectformer_h_large", 54_162_792),
    ],
)
def test_parameters_without_the_second_head(name: str, count: int) -> None:
    assert sum(p.numel() for p in outline(name, token_labels=False).parameters()) == count


def test_the_class_token_attends_and_tokens_stay() -> None:
    block, tokens = _ClassBlock(6, 2, 2).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    out = block(tokens)
    assert torch.equal(out[:, 1:], tokens)
    for b in range(2):
        token = tokens[b].mean(0)
        normed = block.norm1(torch.cat((token[None], tokens[b])))
        keys, values = block.attention.key(normed), block.attention.value(normed)
        query, parts = block.attention.query(normed[0]), []
        for head in (slice(0, 3), slice(3, 6)):
            shares = torch.softmax(torch.stack([query[head] @ key[head] / 3**0.5 for key in keys]), 0)
            parts.append(sum(share * value[head] for share, value in zip(shares, values, strict=True)))
        token = token + block.attention.proj(torch.cat(parts))
        hidden = torch.nn.functional.gelu(block.feed_forward.first(block.norm2(token)))
        torch.testing.assert_close(out[b, 0], token + block.feed_forward.second(hidden))


def test_filters_have_the_sizes_of_their_stages() -> None:
    sizes = [m.size for m in outline("spectformer_h_small").modules() if isinstance(m, SpectralGating)]
    assert sizes == [(56, 56)] * 3 + [(28, 28)] * 4
    model = tiny()
    assert [m.size for m in model.modules() if isinstance(m, SpectralGating)] == [(10, 10), (5, 5)]
    maps = model.forward_intermediates(torch.rand(1, 3, 40, 56), intermediates_only=True)
    assert [tuple(x.shape[2:]) for x in maps] == [(10, 14), (5, 7), (3, 4), (2, 2)]


def test_the_class_token_shows_its_couplings() -> None:
    with mereo.record(model := tiny()) as trace:
        model(torch.rand(2, 3, 40, 40))
    assert trace["class_block.attention.coupling"].shape == (2, 2, 1, 5)
    assert trace["stages.2.blocks.1.mixer.coupling"].shape == (2, 2, 9, 9)


def test_the_names_of_the_authors() -> None:
    model = tiny()
    (layout,) = [each for each in LAYOUTS if each.module is HierarchicalSpectFormer]
    tensors = to_layout(model, layout)
    assert {
        "patch_embed1.conv.7.running_var", "patch_embed1.proj.bias", "patch_embed2.norm.weight", "norm4.bias",
        "block1.0.attn.complex_weight", "block3.1.mlp.dwconv.dwconv.bias", "post_network.0.attn.kv.bias",
        "block4.0.attn.q.weight", "aux_head.weight",
    } <= set(tensors)  # fmt: skip
    again = mereo.convert(tensors, model="spectformer_h_small", **TINY)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": (1, 1)}, "one of each for every stage"),
        ({"spectral_stages": 5}, "between 0 and 4"),
        ({"num_heads": (1, 1, 3, 2)}, "each must divide its width"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(**changes)
