"""TNL: a slow reference from its equations, worked numbers, parameters, and a state that does not grow."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.layers import SimpleGLU, SimpleRMSNorm
from mereo.mechanisms.scan import decay_slopes
from mereo.mechanisms.scan.lightning import LinearizedPositions
from mereo.models.registry import outline
from mereo.models.sequence import CausalTransformer


def norm(x: Tensor) -> Tensor:
    return x / (x.square().sum() / len(x) + 1e-6).sqrt()


def reference(model: CausalTransformer, tokens: list[int]) -> Tensor:
    """Scores (tokens, vocabulary), a token at a time in loops, with all pairs of tokens and no state."""
    dim, depth = model.num_features, len(model.blocks)
    x = [math.sqrt(dim) * model.embedding.weight[token] for token in tokens]
    for layer, block in enumerate(model.blocks):
        mixer, channels = block.mixer, block.channels
        heads, slopes = mixer.num_heads, decay_slopes(mixer.num_heads, "alibi", layer, depth)
        read = []
        for t, token in enumerate(x):
            q, k, v, u = (mixer.qkvu.weight @ norm(token)).split(dim)
            q, k = (F.silu(part).view(heads, -1) for part in (q, k))
            if mixer.positions is not None:
                angle = mixer.positions.theta[:, 0] * t
                q, k = (torch.cat((part * angle.cos(), part * angle.sin()), 1) for part in (q, k))
            read.append((q, k, v.view(heads, -1), u))
        mixed = []
        for t, (q, _, _, u) in enumerate(read):
            of_heads = [
                sum(math.exp(-slopes[h] * (t - s)) * (q[h] @ read[s][1][h]) * read[s][2][h] for s in range(t + 1))
                for h in range(heads)
            ]
            mixed.append(mixer.proj.weight @ (norm(torch.cat(of_heads)) * u))
        x = [token + more for token, more in zip(x, mixed, strict=True)]
        for t, token in enumerate(x):
            y = norm(token)
            x[t] = token + channels.second.weight @ ((channels.first.weight @ y) * (channels.gate.weight @ y))
    return torch.stack([model.head.weight @ norm(token) for token in x])


def small(**arguments: Any) -> CausalTransformer:
    sizes = {"vocab_size": 31, "dim": 12, "depth": 3, "num_heads": 3, "glu_dim": 20, "block": 4}
    model: Any = mereo.create_model("tnl_tiny", **{**sizes, **arguments}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("lrpe_layers", [0, 1, 3])
def test_it_computes_its_equations(lrpe_layers: int) -> None:
    model = small(lrpe_layers=lrpe_layers)
    tokens = torch.randint(31, (1, 11))
    torch.testing.assert_close(model(tokens)[0], reference(model, tokens[0].tolist()), rtol=1e-4, atol=1e-5)


def test_the_norm_and_the_gated_unit() -> None:
    torch.testing.assert_close(
        SimpleRMSNorm()(torch.tensor([3.0, 4])), torch.tensor([0.8485, 1.1314]), atol=1e-4, rtol=0
    )
    assert SimpleRMSNorm()(torch.zeros(2, 3)).eq(0).all() and SimpleRMSNorm()(torch.full((3,), 1e30)).isfinite().all()
    unit = SimpleGLU(2, 1)
    for layer, weights in ((unit.first, [[1.0, 2]]), (unit.gate, [[3.0, 0]]), (unit.second, [[1.0], [-1]])):
        layer.weight.data = torch.tensor(weights)
    assert unit(torch.tensor([2.0, 1])).tolist() == [24, -24]  # (2 + 2) * 6


@pytest.mark.parametrize("block", [5, 16])
def test_parallel_blocks_and_steps_agree(block: int) -> None:
    model = small(block=block).float()
    tokens = torch.randint(31, (2, 37))
    with torch.no_grad():
        whole = model(tokens)
        with mereo.record(model):  # in blocks; otherwise what is compiled runs
            blocks = model(tokens)
        rows, state = [], None
        for t in range(37):
            row, state = model.step(tokens[:, t], state)
            rows.append(row)
    for other in (blocks, torch.stack(rows, 1)):
        assert (other - whole).abs().max() <= 1e-5 * whole.abs().max()


def test_the_state_does_not_grow() -> None:
    model = small().float()
    sizes, state = [], None
    with torch.no_grad():
        for length in (1, 6, 50):
            _, state = model.extend(torch.randint(31, (2, length)), state)
            sizes.append([block.memory.numel() for block in state.blocks])
            # Of each of 3 heads 4 x 4 numbers; the first layer's keys are twice as long by their positions.
            assert sizes[-1] == [2 * 3 * 8 * 4, 2 * 3 * 4 * 4, 2 * 3 * 4 * 4]
    assert state.position == 57


def test_positions_are_learned_in_the_first_layers_only() -> None:
    for lrpe_layers in (0, 1, 2):
        model = small(lrpe_layers=lrpe_layers)
        assert [block.mixer.positions is not None for block in model.blocks] == [i < lrpe_layers for i in range(3)]
    theta = small().blocks[0].mixer.positions.theta
    fresh = LinearizedPositions(3, 4).theta.flatten()
    assert theta.shape == (3, 1, 4)
    torch.testing.assert_close(fresh[[0, 1, 11]], 10000.0 ** torch.tensor([0, -2 / 12, -22 / 12]))


def test_each_layer_forgets_less_than_the_one_before() -> None:
    model: Any = mereo.create_model("tnl_tiny")
    slopes = [block.mixer.slopes() for block in model.blocks]
    assert slopes[0] == pytest.approx([0.25 * 1.00001, 0.0625 * 1.00001, 0.015625 * 1.00001, 0.00390625 * 1.00001])
    assert slopes[3] == pytest.approx([0.25e-5, 0.0625e-5, 0.015625e-5, 0.00390625e-5])
    assert all(a > b for one, after in pairwise(slopes) for a, b in zip(one, after, strict=True))
    assert small(decay="paper").blocks[0].mixer.slopes() == pytest.approx([8 / 3, 16 / 3, 8])


def test_published_numbers_of_parameters() -> None:
    def without(name: str, *left_out: str) -> int:
        model = outline(name)
        return sum(p.numel() for n, p in model.named_parameters() if not n.startswith(left_out))

    assert outline("tnl_385m").blocks[1].mixer.proj.weight.shape == (1024, 1024)
    layer = sum(p.numel() for p in outline("tnl_385m").blocks[1].parameters())
    assert layer == 13_893_632
    assert 24 * layer + 50_272 * 1024 == pytest.approx(384.93e6, rel=1e-4)
    assert without("tnl_385m", "head") == pytest.approx(398.98e6, rel=1e-4)
    assert without("tnl_1b", "head") == pytest.approx(1020.3e6, rel=1e-4)
    small = 6 * (5 * 512**2 + 3 * 512 * 1280) + 50_272 * 512 + 512
    assert without("tnl_wikitext103") == small == pytest.approx(45.45e6, rel=2e-3)
    assert without("tnl_enwik8") == 12 * layer + 2 * 256 * 1024 + 1024
    assert without("tnl_7b", "head") == pytest.approx(6553.6e6, rel=1e-4)


def test_it_starts_with_normal_weights_of_a_fiftieth() -> None:
    model = mereo.create_model("tnl_tiny", depth=2)
    weights = [p for n, p in model.named_parameters() if "theta" not in n]
    assert all(abs(float(p.detach().std()) - 0.02) < 2e-3 for p in weights) and len(weights) == 12


def test_arguments_that_it_does_not_take() -> None:
    for arguments, message in (
        ({"num_heads": 5}, "num_heads 5"),
        ({"lrpe_layers": 5}, "first_layers is 5; it must be from 0 to depth, which is 4"),
        ({"glu_dim": 0}, "hidden_dim is 0"),
        ({"decay": "fast"}, "decay is 'fast'"),
    ):
        with pytest.raises(UsageError, match=message):
            mereo.create_model("tnl_tiny", **arguments)
