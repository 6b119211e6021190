"""Token-aware average pooling: box filters, the identity, published sizes, and its place before attention."""

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.core.meta_device import on_meta_device
from mereo.errors import UsageError
from mereo.mechanisms.mixer.token_aware_pooling import TokenAwarePooling, box_mean

SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 16, "num_heads": 2, "img_size": (32, 48), "patch_size": 8}


def test_box_filters_of_sixteen_numbers() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    found = [box_mean(x, 1)[0, 0, i, i].item() for i in (0, 1, 3)]
    found += [box_mean(x, dilation)[0, 0, 0, 0].item() for dilation in (2, 3)]
    assert found == pytest.approx([10 / 9, 5, 50 / 9, 20 / 9, 30 / 9], rel=1e-6)


def slow(pool: TokenAwarePooling, tokens: Tensor) -> Tensor:
    """Every tap by itself."""
    rows, columns = pool.size
    out = tokens.clone()
    for image in range(len(tokens)):
        cells = tokens[image, pool.prefix :].view(rows, columns, -1)
        shares = pool.predictor(cells.permute(2, 0, 1)[None]).softmax(1)[0]
        for i in range(rows):
            for j in range(columns):
                total = shares[0, i, j] * cells[i, j]
                for d in range(1, pool.num_scales):
                    taps = [(i + d * a, j + d * b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
                    inside = [cells[a, b] for a, b in taps if 0 <= a < rows and 0 <= b < columns]
                    total = total + shares[d, i, j] * torch.stack(inside).sum(0) / 9
                out[image, pool.prefix + i * columns + j] = total
    return out


def test_it_is_the_sum_of_all_taps() -> None:
    pool = TokenAwarePooling(3, (4, 5), 3, prefix=2).double().eval()
    tokens = torch.randn(2, 22, 3).double()
    torch.testing.assert_close(pool(tokens), slow(pool, tokens))
    with mereo.record(pool) as trace:
        pool(tokens)
    assert trace["gates"].shape == (2, 4, 5, 3)


def test_one_scale_and_a_constant_image_change_nothing() -> None:
    tokens = torch.randn(1, 49, 4)
    assert TokenAwarePooling(4, 7, 1)(tokens) is tokens and not list(TokenAwarePooling(4, 7, 1).parameters())
    pool = TokenAwarePooling(4, 9).eval()
    with mereo.intervene(pool, {"gates": lambda shares: F.one_hot(torch.zeros(shares.shape[:3]).long(), 4).float()}):
        out = torch.randn(1, 81, 4)
        assert torch.equal(pool(out), out)
    same = torch.ones(1, 81, 4)
    torch.testing.assert_close(pool(same).view(9, 9, 4)[3:6, 3:6], torch.ones(3, 3, 4))


def _token_block(dim: int, heads: int, num_scales: int, hidden: int) -> nn.Module:
    """The parameters of a block of FAN: attention, channel processing, and the pooling."""
    depthwise = {"kernel_size": 3, "groups": hidden}
    block = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim), nn.Linear(dim, dim)])
    block.extend([nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)])
    block.extend([nn.Linear(dim, hidden), nn.Linear(hidden, dim), nn.BatchNorm2d(hidden)])
    block.extend([nn.Conv2d(hidden, hidden, **depthwise), nn.Conv2d(hidden, hidden, **depthwise)])
    block.append(TokenAwarePooling(dim, 14, num_scales))
    block.append(nn.ParameterList([torch.empty(n) for n in (heads, hidden, dim, dim)]))
    return block


def _class_block(dim: int) -> nn.Module:
    layers = [nn.LayerNorm(dim), nn.LayerNorm(dim), *(nn.Linear(dim, dim) for _ in range(4))]
    return nn.ModuleList([*layers, nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim), nn.LayerNorm(dim)])


def _convolution(dim: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(dim, out, 3, bias=False), nn.BatchNorm2d(out))


def _next_block(dim: int) -> nn.Module:
    """A block of ConvNeXt with its gains."""
    layers = [nn.Conv2d(dim, dim, 7, groups=dim), nn.LayerNorm(dim), nn.Conv2d(dim, 4 * dim, 1)]
    return nn.ModuleList([*layers, nn.Conv2d(4 * dim, dim, 1), nn.ParameterList([torch.empty(dim)])])


def _fan(dim: int, depth: int, heads: int, num_scales: int, hybrid: bool) -> int:
    """Parameters of FAN with 1,000 classes, from the shapes of its layers."""
    with on_meta_device():
        if hybrid:
            stem = [nn.Conv2d(3, 128, 4), nn.LayerNorm(128), nn.LayerNorm(128), nn.Conv2d(128, 256, 2)]
            stem += [_next_block(width) for width in (128, 256) for _ in range(3)] + [nn.Conv2d(256, dim, 2)]
        else:
            stem = [_convolution(3 if part == 8 else dim // part // 2, dim // part) for part in (8, 4, 2, 1)]
        blocks = [_token_block(dim, heads, num_scales, 4 * dim) for _ in range(depth)]
        rest = [nn.Conv2d(64, dim, 1), _class_block(dim), _class_block(dim), nn.LayerNorm(dim), nn.Linear(dim, 1000)]
        layers = nn.ModuleList([*stem, *blocks, *rest, nn.ParameterList([torch.empty(dim)])])
    return sum(parameter.numel() for parameter in layers.parameters())


def test_published_sizes_of_fan() -> None:
    assert sum(parameter.numel() for parameter in TokenAwarePooling(192, 14).parameters()) == 7064
    assert _fan(192, 12, 4, 4, hybrid=False) == 7_404_688
    assert _fan(448, 16, 8, 4, hybrid=True) == 50_735_528
    # One scale has 9 C + 2 + 9 parameters in the released code, without effect.
    assert _fan(192, 12, 4, 1, hybrid=False) + 12 * (9 * 192 + 11) == 7_340_788
    assert _fan(448, 16, 8, 1, hybrid=True) + 16 * (9 * 448 + 11) == 50_539_736


def test_the_residual_of_a_block_stays_unpooled() -> None:
    model = mereo.create_model("vit_tiny", num_classes=3, **SMALL).eval()
    pooled = mereo.tap(model, 3).eval()
    assert {*model.state_dict()} < {*pooled.state_dict()}
    block, plain = pooled.blocks[0], model.blocks[0]
    tokens = torch.randn(2, 25, 16)
    attended = tokens + plain.attn(plain.norm1(block.token_pool(tokens)))
    torch.testing.assert_close(block(tokens), attended + plain.mlp(plain.norm2(attended)))
    assert torch.equal(block.token_pool(tokens)[:, :1], tokens[:, :1])
    assert block.token_pool.size == (4, 6) and block.token_pool.prefix == 1
    assert torch.equal(model.blocks[0](tokens), plain(tokens)) and not hasattr(plain, "token_pool")


def test_weights_are_saved_with_the_pooling(tmp_path: Any) -> None:
    pooled = mereo.tap(mereo.create_model("vit_tiny", num_classes=3, **SMALL), 2).eval()
    mereo.save_weights(tmp_path / "tap.safetensors", pooled)
    images = torch.rand(2, 3, 32, 48)
    assert torch.equal(mereo.load(tmp_path / "tap.safetensors").eval()(images), pooled(images))


def test_networks_of_timm_and_networks_without_blocks() -> None:
    network = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64)
    assert mereo.tap(network).eval()(torch.rand(1, 3, 64, 64)).shape == (1, 1000)
    for model in (nn.Linear(2, 2), mereo.create_model("resnet20", widths=(4, 4, 8), blocks=1)):
        with pytest.raises(UsageError, match=type(model).__name__):
            mereo.tap(model)
    with pytest.raises(UsageError, match="num_scales"):
        mereo.tap(network, 0)
    with pytest.raises(UsageError, match=r"\(1, 48, 4\)"):
        TokenAwarePooling(4, 7)(torch.randn(1, 48, 4))
