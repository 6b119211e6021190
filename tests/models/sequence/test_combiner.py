"""The decoder around Combiner by its equations, its positions and its number of parameters."""

import math

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.models.registry import outline

TINY = {"dim": 12, "num_heads": 3, "size": 4, "hidden_dim": 20}


def test_it_equals_its_equations() -> None:
    model = mereo.create_model("combiner_tiny", **TINY).double().eval()
    tokens = torch.randint(256, (2, 11))
    x = model.embedding(tokens) * 12**0.5
    for t in range(11):
        for i in range(6):
            x[:, t, i] += math.sin(t * 10000 ** (-i / 6))
            x[:, t, 6 + i] += math.cos(t * 10000 ** (-i / 6))
    for block in model.blocks:
        x = x + block.mixer(block.norm1(x))
        hidden = torch.nn.functional.gelu(block.channels.first(block.norm2(x)))
        x = x + block.channels.second(hidden)
    torch.testing.assert_close(model(tokens), model.head(model.norm(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "squares"), [("combiner_tiny", 4), ("combiner_axial_tiny", 6)])
def test_parameters_by_hand(name: str, squares: int) -> None:
    model = mereo.create_model(name)
    layer = squares * 64**2 + (128 if squares == 6 else 0) + 4 * 64 + 2 * 64 * 256 + 256 + 64
    assert sum(p.numel() for p in model.parameters()) == 2 * layer + 128 + 2 * 256 * 64


def test_larger_networks_by_hand() -> None:
    for name, dim, depth, hidden in (
        ("fixed_base", 768, 12, 3072), ("fixed_enwik8", 1024, 12, 3072), ("mixture_cifar10", 512, 6, 2048),
        ("mixture_imagenet64", 512, 6, 2048),
    ):  # fmt: skip
        layer = 4 * dim**2 + 4 * dim + 2 * dim * hidden + hidden + dim
        total = sum(p.numel() for p in outline(f"combiner_{name}").parameters())
        assert total == depth * layer + 2 * dim + 2 * 256 * dim
    assert [outline(f"combiner_mixture_{name}").context for name in ("cifar10", "imagenet64")] == [3072, 12_288]


def test_couplings_reach_every_earlier_token() -> None:
    model = mereo.create_model("combiner_tiny", **TINY).eval()
    with mereo.record(model) as trace:
        model(torch.randint(256, (2, 11)))
    for name in ("blocks.0.mixer.coupling", "blocks.1.mixer.coupling"):
        couplings = trace[name]
        assert couplings.shape == (2, 3, 11, 11)
        assert torch.equal(couplings > 0, torch.ones(11, 11).tril().bool().expand_as(couplings))


def test_bad_arguments() -> None:
    for arguments, message in (
        ({"dim": 9}, "must be even"),
        ({"plan": "fixd"}, "Did you mean 'fixed'"),
        ({"size": 0}, "size is 0"),
        ({"plan": "learned"}, "'learned'"),
    ):
        with pytest.raises(UsageError, match=message):
            mereo.create_model("combiner_tiny", **{**TINY, **arguments})(torch.zeros(1, 4, dtype=torch.int64))
