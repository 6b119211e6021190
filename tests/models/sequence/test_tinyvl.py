"""TinyVL: a slow reference, its size, absent images, caches, refused rows."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.models.sequence import TinyVL
from tiny_decoders import cached, prompts, recomputed, tiny_vl


def slow(model: Any, rows: Tensor) -> Tensor:
    """Scores of the last token of one sample by loops over layers, heads and tokens."""

    def rms(x: Tensor, norm: Any) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight

    words = [model.embedding.weight[int(token)] for token in rows[0, 16:, 16]]
    x = torch.stack([model.embedding.weight[0], *(rows[0, :16, :16] @ model.image.weight.T), *words])
    x = x + model.positions[: len(x)]
    for block in model.blocks:
        q, k, v = (rms(x, block.norm1) @ block.qkv.weight.T).chunk(3, -1)
        size, merged = q.shape[1] // block.num_heads, torch.zeros_like(q)
        for head in range(block.num_heads):
            part = slice(head * size, (head + 1) * size)
            for i in range(len(x)):
                shares = (k[: i + 1, part] @ q[i, part] / size**0.5).softmax(0)
                merged[i, part] = shares @ v[: i + 1, part]
        x = x + merged @ block.proj.weight.T
        hidden = F.gelu(rms(x, block.norm2) @ block.mlp.first.weight.T + block.mlp.first.bias)
        x = x + hidden @ block.mlp.second.weight.T + block.mlp.second.bias
    scores: Tensor = rms(x[-1], model.norm) @ model.head.weight.T
    return scores


def test_scores_are_those_of_a_slow_reference() -> None:
    model, rows = tiny_vl().double(), prompts(1).double()
    torch.testing.assert_close(model(rows)[0, -1], slow(model, rows))


def test_the_size_of_the_page() -> None:
    assert sum(p.numel() for p in TinyVL().parameters()) == 87_264


def test_a_cache_changes_nothing_and_an_absent_image_is_shorter_not_zero() -> None:
    for depth in (0, 2):
        model, rows, tokens = tiny_vl(encoder_depth=depth), prompts(), torch.tensor([[3, 9], [5, 1]])
        torch.testing.assert_close(cached(model, rows, tokens), recomputed(model, rows, tokens), rtol=0, atol=1e-5)
    with mereo.record(model) as trace, torch.no_grad():
        alone = model(rows, image=False)
        assert trace["blocks.0.coupling"].shape[2:] == (3, 3), "start and text"
        zeros = model(torch.cat((0 * rows[:, :16], rows[:, 16:]), 1))
        other = model(torch.cat((torch.randn_like(rows[:, :16]), rows[:, 16:]), 1), image=False)
    assert torch.equal(alone, other) and not torch.allclose(alone[:, -1], zeros[:, -1])


@pytest.mark.parametrize(
    ("rows", "value"),
    [
        (torch.zeros(2, 16, 17), "(2, 16, 17)"),
        (torch.zeros(2, 18, 5), "(2, 18, 5)"),
        (torch.zeros(2, 18, 17, dtype=torch.int64), "int64"),
        (torch.zeros(2, 40, 17), "41"),
        (F.pad(torch.full((1, 18, 1), 77.0), (16, 0)), "77"),
    ],
)
def test_refused_rows(rows: Tensor, value: str) -> None:
    with pytest.raises(UsageError) as error:
        TinyVL()(rows)
    assert str(error.value).startswith("rows") and value in str(error.value)
    with pytest.raises(UsageError) as error:
        TinyVL(context=17)
    assert "context is 17" in str(error.value)
