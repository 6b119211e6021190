"""The decoder with softmax attention: a slow reference, positions that are relative, an equal size, a growing state."""

import math

import pytest
import torch
from torch import Tensor

import mereo
from mereo.catalogue import MECHANISMS
from mereo.core import Coupling
from mereo.core.rotary import rotate
from mereo.errors import UsageError
from mereo.layers import distance_bias
from mereo.models import get_model_entry
from mereo.models.sequence.causal_transformer import CausalTransformer, bias_slopes


def norm(x: Tensor) -> Tensor:
    return x / (x.square().sum() / len(x) + 1e-6).sqrt()


def turned(x: Tensor, t: int) -> Tensor:
    half = len(x) // 2
    out = x.clone()
    for c in range(half):
        angle = t * 10_000 ** (-c / half)
        out[c] = x[c] * math.cos(angle) - x[c + half] * math.sin(angle)
        out[c + half] = x[c] * math.sin(angle) + x[c + half] * math.cos(angle)
    return out


def reference(model: CausalTransformer, tokens: list[int]) -> Tensor:
    """Scores (tokens, vocabulary) in loops."""
    dim = model.num_features
    x = [math.sqrt(dim) * model.embedding.weight[token] for token in tokens]
    for block in model.blocks:
        heads = block.num_heads
        read = [(block.qkv.weight @ norm(token)).view(3, heads, -1) for token in x]
        mixed = []
        for t in range(len(x)):
            of_heads = []
            for h in range(heads):
                q = turned(read[t][0, h], t)
                fits = [torch.dot(q, turned(read[s][1, h], s)) / math.sqrt(len(q)) for s in range(t + 1)]
                shares = torch.stack(fits).softmax(0)
                of_heads.append(sum(share * read[s][2, h] for s, share in enumerate(shares)))
            mixed.append(block.proj.weight @ torch.cat(of_heads))
        x = [token + more for token, more in zip(x, mixed, strict=True)]
        for t, token in enumerate(x):
            y = norm(token)
            x[t] = token + block.channels.second.weight @ (
                (block.channels.first.weight @ y) * (block.channels.gate.weight @ y)
            )
    return torch.stack([model.head.weight @ norm(token) for token in x])


def small() -> CausalTransformer:
    model = CausalTransformer(31, 12, 2, 3, 20).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_it_computes_its_equations() -> None:
    model, tokens = small(), torch.randint(31, (1, 9))
    torch.testing.assert_close(model(tokens)[0], reference(model, tokens[0].tolist()), rtol=1e-4, atol=1e-5)


def test_positions_are_relative() -> None:
    q, k = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64)
    for shift in (0, 3, 40):
        near = (rotate(q, 5 + shift) * rotate(k, 2 + shift)).sum()
        torch.testing.assert_close(near, (rotate(q, 3) * k).sum(), rtol=1e-5, atol=1e-6)
    both = rotate(torch.cat((q, k), 2), 7)
    torch.testing.assert_close(both[:, :, 1:], rotate(k, 8))


def test_its_state_grows_with_every_token() -> None:
    model = small()
    _, state = model.extend(torch.randint(31, (2, 5)))
    _, state = model.extend(torch.randint(31, (2, 1)), state)
    assert [block.keys.shape for block in state.blocks] == [(2, 3, 6, 4)] * 2


def test_its_couplings_are_causal() -> None:
    model, tokens = small(), torch.randint(31, (1, 7))
    with mereo.record(model) as trace:
        model(tokens)
    for name, module in model.named_modules():
        if isinstance(module, Coupling):
            assert trace[name].shape == (1, 3, 7, 7) and not trace[name].triu(1).any()


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_it_is_as_large_as_tnl(size: str) -> None:
    ours, theirs = (get_model_entry(f"{name}_{size}") for name in ("causal_transformer", "tnl"))
    assert ours.parameters == pytest.approx(theirs.parameters, rel=0.002)
    same = ("dim", "depth", "num_heads", "context", "vocab_size")
    assert all(ours.defaults[name] == theirs.defaults[name] for name in same)


def test_heads_of_an_odd_size() -> None:
    with pytest.raises(UsageError, match="multiple of 2 num_heads"):
        CausalTransformer(31, 9, 2, 3)


every_causal_mechanism = pytest.mark.parametrize(
    "name", [each for each in mereo.list_mechanisms() if "causal" in MECHANISMS[each].promises]
)


def with_mechanism(name: str) -> CausalTransformer:
    arguments = {"dim": 12, "depth": 2, "num_heads": 3, "hidden_dim": 20, "vocab_size": 31, "dropout": 0.1}
    torch.manual_seed(0)
    return mereo.create_model("causal_transformer_tiny", mechanism=name, channels="gelu", **arguments)


@every_causal_mechanism
def test_every_causal_mechanism_stands_in_its_slot(name: str) -> None:
    model = with_mechanism(name)
    tokens, optimizer, losses = torch.randint(31, (2, 12)), torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + sum(mereo.added_losses(model).values())).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    scores, changed = model.eval()(tokens), torch.cat((tokens[:, :6], tokens[:, 6:].flip(1)), 1)
    torch.testing.assert_close(model(changed)[:, :6], scores[:, :6])
    again = mereo.create_model(model.config["model"], **model.config["args"]).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(tokens), scores)


@pytest.mark.long
@every_causal_mechanism
def test_every_causal_mechanism_compiles_and_exports_in_its_slot(name: str) -> None:
    model, tokens = with_mechanism(name).eval(), torch.randint(31, (2, 12))
    scores = model(tokens)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(tokens)
    torch.testing.assert_close(compiled, scores, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(model, (tokens,)).module()(tokens)
    torch.testing.assert_close(exported, scores, rtol=1e-4, atol=1e-5)


def test_other_mechanisms_are_refused_by_name() -> None:
    for name in ("neighborhood", "squeeze_excite", "multi_head"):
        with pytest.raises(UsageError, match=f"{name}.*combiner"):
            mereo.create_model("causal_transformer_tiny", mechanism=name)
    for arguments, message in (
        ({"mechanism_args": {"plan": "fixed"}}, "mechanism_args"), ({"channels": "swish"}, "swish"),
        ({"first_layers": 9}, "first_layers is 9"), ({"sines": True, "dim": 9, "num_heads": 3}, "must be"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            mereo.create_model("causal_transformer_tiny", **arguments)


def biased(**positions: object) -> CausalTransformer:
    torch.manual_seed(0)
    model = CausalTransformer(31, 12, 2, 3, 20, positions=positions).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_distances_by_hand() -> None:
    slopes = torch.tensor([1, 0.5], dtype=torch.float64)
    harmonic = distance_bias(slopes, "harmonic", 4, 4)[0]
    sums = [0, 1, 1.5, 11 / 6]  # 1 + 1/2 + 1/3 is 1.8333
    torch.testing.assert_close(harmonic[0, 3], -torch.tensor(sums[::-1], dtype=torch.float64))
    torch.testing.assert_close(harmonic[1], harmonic[0] / 2)
    linear = distance_bias(slopes, "linear", 4, 4)[0]
    assert linear[0].tolist() == [[0, 0, 0, 0], [-1, 0, 0, 0], [-2, -1, 0, 0], [-3, -2, -1, 0]]
    # The last two of four receivers.
    for kind, whole in (("linear", linear), ("harmonic", harmonic)):
        assert torch.equal(distance_bias(slopes, kind, 2, 4)[0], whole[:, 2:])


def test_slopes_of_the_heads() -> None:
    assert bias_slopes(8, "alibi", 1.0) == [2.0**-h for h in range(1, 9)]
    assert bias_slopes(3, "harmonic", 2.0) == [2, 1, 2 / 3]


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("distance", ["linear", "harmonic"])
@pytest.mark.parametrize("slopes", ["alibi", "harmonic"])
def test_scores_with_a_bias_by_distance(rotary: bool, distance: str, slopes: str) -> None:
    model = biased(rotary=rotary, distance=distance, slopes=slopes, factor=0.7)
    tokens, block = torch.randint(31, (1, 7)), model.blocks[0]
    x = model.embed(tokens)
    q, k, _ = (block.qkv(block.norm1(x))[0, :, i * 12 : (i + 1) * 12].view(7, 3, 4) for i in range(3))
    with mereo.record(model) as trace:
        model(tokens)
    shares = trace["blocks.0.coupling"]
    for h, slope in enumerate(bias_slopes(3, slopes, 1.0)):
        for i in range(7):
            scores = []
            for j in range(i + 1):
                left, right = (turned(q[i, h], i), turned(k[j, h], j)) if rotary else (q[i, h], k[j, h])
                far = i - j if distance == "linear" else sum(1 / t for t in range(1, i - j + 1))
                scores.append(torch.dot(left, right) / 2 - 0.7 * slope * far)
            torch.testing.assert_close(shares[0, h, i, : i + 1], torch.stack(scores).softmax(0), rtol=1e-4, atol=1e-6)


def test_a_factor_of_zero_is_rotary_attention_alone() -> None:
    tokens = torch.randint(31, (2, 9))
    assert torch.equal(biased(distance="harmonic", factor=0.0)(tokens), biased()(tokens))
    assert (biased(distance="harmonic")(tokens) - biased()(tokens)).abs().max() > 1e-3


@pytest.mark.parametrize("distance", ["linear", "harmonic"])
def test_only_distances_count_and_steps_are_the_whole(distance: str) -> None:
    model = biased(distance=distance)
    block, x = model.blocks[0], torch.randn(1, 1, 12, dtype=torch.float64)
    # Equal tokens: couplings depend on distances only, up to their sum.
    with mereo.record(block) as trace:
        block(x.expand(1, 8, 12))
    ratios = [shares.log().diff() for i in (5, 7) for shares in (trace["coupling"][0, 0, i, : i + 1],)]
    torch.testing.assert_close(ratios[0], ratios[1][2:], rtol=1e-4, atol=1e-6)
    tokens, state, rows = torch.randint(31, (2, 9)), None, []
    for t in range(9):
        row, state = model.step(tokens[:, t], state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), model(tokens), rtol=1e-5, atol=1e-6)


def test_wrong_positions() -> None:
    for wrong in ({"distance": "square"}, {"slopes": "one"}, {"factor": -1.0}, {"bias": 1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            CausalTransformer(31, 12, 1, 3, 20, positions=wrong)
    with pytest.raises(UsageError, match="positions"):
        CausalTransformer(31, 12, 1, 3, 20, mechanism="lightning", positions={"rotary": False})
    assert CausalTransformer(31, 9, 1, 3, 20, positions={"rotary": False})(torch.zeros(1, 2).long()).shape == (1, 2, 31)
    with pytest.raises(UsageError, match="multiple of num_heads"):
        CausalTransformer(31, 10, 1, 3, 20, positions={"rotary": False})
