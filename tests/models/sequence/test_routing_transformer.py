"""Routing Transformer by its equations, its layers without clusters, and its number of parameters."""

import pytest
import torch

import mereo
from mereo.core import added_losses
from mereo.errors import UsageError
from mereo.models.registry import outline

TINY = {"dim": 12, "heads_local": 1, "heads_routed": 2, "clusters": 2, "window": 4, "block": 4, "hidden_dim": 20}


def test_it_equals_its_equations() -> None:
    model = mereo.create_model("routing_transformer_tiny", **TINY).double().train()
    tokens = torch.randint(256, (2, 11))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    scores, term = model(tokens), added_losses(model)["clusters"]
    model.load_state_dict(state)
    x, terms = model.embedding(tokens) * 12**0.5, []
    for block in model.blocks:
        x = x + block.mixer(block.norm1(x))
        x = x + block.channels.second(block.channels.first(block.norm2(x)).relu())
        terms.append(added_losses(block)["clusters"])
    torch.testing.assert_close(scores, model.head(model.norm(x)))
    torch.testing.assert_close(term, terms[0] + terms[1])
    assert term > 0


@pytest.mark.parametrize("name", ["tiny", "small", "enwik8"])
def test_parameters_by_hand(name: str) -> None:
    model = outline(f"routing_transformer_{name}")
    arguments = {**model.config["args"], **model.config["args"]["mechanism_args"]}
    dim, local, routed = arguments["dim"], arguments["heads_local"], arguments["heads_routed"]
    size, hidden = dim // (local + routed), arguments["hidden_dim"]
    attention = (
        3 * dim * local * size
        + 2 * dim * routed * size
        + dim * dim
        + local * 2 * arguments.get("block", arguments["window"])
    )
    layer = attention + 4 * dim + 2 * dim * hidden + hidden + dim
    total = arguments["depth"] * layer + 2 * dim + 2 * 256 * dim
    assert sum(p.numel() for p in model.parameters()) == total


def test_published_sizes() -> None:
    for name, tokens, layers, local, routed, clusters, window in (
        ("wikitext103", 4096, 14, 8, 8, 8, 512), ("wikitext103_short", 1024, 20, 8, 8, 2, 512),
        ("enwik8", 12_288, 12, 4, 4, 48, 256), ("pg19", 8192, 22, 6, 2, 16, 512),
    ):  # fmt: skip
        model = outline(f"routing_transformer_{name}")
        last = model.blocks[-1].mixer
        assert (model.context, len(model.blocks)) == (tokens, layers) and clusters * window == tokens
        assert (last.heads_local, last.heads_routed, last.window) == (local, routed, window)
        assert last.clusters.centroids.shape == (routed, clusters, model.num_features // (local + routed))
        first = model.blocks[0].mixer
        assert first.heads_routed == (0 if name == "pg19" else routed)


def test_only_the_last_layers_have_clusters() -> None:
    model = mereo.create_model("routing_transformer_tiny", **TINY, depth=3, local_layers=2)
    heads = [(block.mixer.heads_local, block.mixer.heads_routed) for block in model.blocks]
    assert heads == [(3, 0), (3, 0), (1, 2)]
    with pytest.raises(UsageError, match="first_layers is 4"):
        mereo.create_model("routing_transformer_tiny", **TINY, depth=3, local_layers=4)


def test_members_of_clusters_leak_later_tokens_without_strict() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (4, 32))
    changed = torch.cat((tokens[:, :16], torch.randint(256, (4, 16))), 1)
    for strict, leaks in (("never", True), ("always", False), ("evaluation", False)):
        torch.manual_seed(0)
        model = mereo.create_model("routing_transformer_tiny", **TINY, strict=strict).eval()
        assert model.causal != leaks
        same = torch.allclose(model(tokens)[:, :16], model(changed)[:, :16], atol=1e-5)
        assert same != leaks


def test_training_moves_the_centroids_of_every_layer() -> None:
    model = mereo.create_model("routing_transformer_tiny", **TINY).train()
    before = [block.mixer.clusters.centroids.clone() for block in model.blocks]
    model(torch.randint(256, (2, 16)))
    assert all((b.mixer.clusters.centroids != c).any() for b, c in zip(model.blocks, before, strict=True))


def test_a_checkpointed_pass_moves_the_centroids_once() -> None:
    states = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = mereo.create_model("routing_transformer_tiny", **TINY, decay=0.5).train()
        model.set_grad_checkpointing(checkpointing)
        tokens = torch.randint(256, (2, 16))
        for _ in range(2):
            model(tokens).square().sum().backward()
        states.append(model.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, msg=name)
