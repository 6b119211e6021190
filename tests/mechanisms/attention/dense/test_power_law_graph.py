"""Power law graph attention: loops in float64, worked numbers, caches, both scopes and the leak, fixed G, DAG loss."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.core import added_losses
from mereo.core.rotary import rotate
from mereo.errors import UsageError
from mereo.mechanisms.attention import PowerLawGraphAttention
from mereo.mechanisms.attention.dense.power_law_graph import Deduced, dag_loss, squared_silu

every_scope = pytest.mark.parametrize("scope", ["all", "prefix"])


def made(**arguments: Any) -> PowerLawGraphAttention:
    """In float64, with biases and powers away from their start."""
    sizes = {"units": 2, "gates": 2, "hidden": 5, **arguments}
    layer = PowerLawGraphAttention(12, 3, **sizes).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def some(tokens: int = 7, batch: int = 2) -> Tensor:
    return torch.randn(batch, tokens, 12, dtype=torch.float64)


def norm(z: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
    mean = z.mean()
    return layer.weight * (z - mean) / ((z - mean).square().mean() + 1e-6).sqrt() + layer.bias


def graph_of(layer: PowerLawGraphAttention, q: Tensor, head: int) -> Tensor:
    """G of queries (tokens, d), by rows."""
    rows = [norm(row, layer.norm) for row in sum(torch.outer(token, token) for token in q)]
    for unit in layer.units:
        for i, row in enumerate(rows):
            z = row
            for each in unit.gates:
                z = each.second(F.silu(each.gate(z)) * each.first(z))
            rows[i] = norm(row + z, unit.norm)
    z = layer.weight[head] @ torch.stack(rows) + layer.bias[head]
    potential = (z * z / (1 + (-z).exp()) + 1e-9) ** layer.power[head]
    return layer.mix[head] @ potential + layer.mix_bias[head]


@every_scope
def test_it_equals_its_equations(scope: str) -> None:
    layer, x = made(metric_scope=scope), some(5)
    out = torch.zeros_like(x)
    for b in range(2):
        for h in range(3):
            own = slice(4 * h, 4 * h + 4)
            q, k, v = (f(x[b])[:, own] for f in (layer.query, layer.key, layer.value))
            q, k = (torch.stack([turned(row, t) for t, row in enumerate(each)]) for each in (q, k))
            for i in range(5):
                G = graph_of(layer, q if scope == "all" else q[: i + 1], h)
                shares = torch.stack([q[i] @ G @ k[j] / 2 for j in range(i + 1)]).softmax(0)
                out[b, i, own] = shares @ v[: i + 1]
    torch.testing.assert_close(layer(x), layer.proj(out), rtol=1e-5, atol=1e-6)  # angles are in float32


def turned(x: Tensor, t: int) -> Tensor:
    """Pairs of neighbouring channels, turned by the position."""
    out = x.clone()
    for c in range(len(x) // 2):
        angle = t * 10_000 ** (-2 * c / len(x))
        out[2 * c] = x[2 * c] * math.cos(angle) - x[2 * c + 1] * math.sin(angle)
        out[2 * c + 1] = x[2 * c] * math.sin(angle) + x[2 * c + 1] * math.cos(angle)
    return out


def test_both_pairings_of_rotary_positions_are_one_but_for_the_order() -> None:
    x = torch.randn(2, 3, 5, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    torch.testing.assert_close(rotate(x, 4, neighbours=True)[..., order], rotate(x[..., order], 4))


@pytest.mark.parametrize("heads", [4, 12])
def test_the_last_of_an_odd_number_of_channels_is_not_turned(heads: int) -> None:
    layer, x = PowerLawGraphAttention(12, heads, units=1, hidden=5).double(), some()
    turned, plain = layer.read(x)[0], layer.query(x).unflatten(-1, (heads, -1)).transpose(1, 2)
    torch.testing.assert_close(turned[..., -1], plain[..., -1])
    torch.testing.assert_close(turned.norm(dim=-1), plain.norm(dim=-1))
    assert layer(x).isfinite().all()


def test_the_identity_is_plain_attention() -> None:
    layer, x = made(graph="identity"), some()
    given = made(graph="given")
    given.load_state_dict(layer.state_dict() | {"given_graph": torch.eye(4).expand(3, 4, 4)})
    q, k, v = layer.read(x)
    expected = layer.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(given(x), expected)
    assert sum(p.numel() for p in layer.parameters()) == 4 * (12 * 12 + 12)


def worked() -> PowerLawGraphAttention:
    layer = PowerLawGraphAttention(2, 1, units=0, rotary=False).double()
    values = {"weight": [[1, 0], [0, 1]], "bias": [[0, 0]] * 2, "power": [[1, 2], [0.5, 1]]}
    values |= {"mix": [[1, 1], [0, 1]], "mix_bias": [[0, 0]] * 2}
    with torch.no_grad():
        for name, value in values.items():
            layer.get_parameter(name).copy_(torch.tensor(value))
    return layer


def test_worked_numbers() -> None:
    layer = worked()
    q = torch.tensor([[[1.0, 0], [1, 1], [0, 2]]]).double()
    gram = q.mT @ q
    assert gram.tolist() == [[[2, 1], [1, 5]]]
    found = layer.deduce(layer.metric(gram.unsqueeze(0)))
    expected = Deduced(
        torch.tensor([[1.0, -1], [-1, 1]]),
        torch.tensor([[0.73106, 0.26894], [0.26894, 0.73106]]),
        torch.tensor([[0.73106, 0.07233], [0.51860, 0.73106]]),
        torch.tensor([[1.24965, 0.80339], [0.51860, 0.73106]]),
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[0, 0], theirs.double(), rtol=0, atol=1e-5)
    k = torch.tensor([[1.0, 1], [0, 1], [1, 0]]).double()
    layer.read = lambda tokens, position=0: (q.unsqueeze(0), k[None, None], k[None, None])  # type: ignore[method-assign]
    with mereo.record(layer) as trace:
        layer(torch.zeros(1, 3, 2).double())
    rows = torch.tensor([[1, 0, 0], [0.77736, 0.22264, 0], [0.54469, 0.26160, 0.19371]]).double()
    torch.testing.assert_close(trace["coupling"][0, 0], rows, rtol=0, atol=1e-5)


def test_squared_silu() -> None:
    found = squared_silu(torch.tensor([-1.0, 0, 1]))
    torch.testing.assert_close(found, torch.tensor([0.268941, 0, 0.731059]), rtol=0, atol=1e-6)


def test_kept_keys_and_graphs_equal_a_pass_with_the_same_graph() -> None:
    layer, x = made(), some(9, 1)
    prompt, state = layer.extend(x[:, :5])
    graph = state.deduced.G_LM
    fixed = made(graph="given")
    fixed.load_state_dict({**layer.state_dict(), "given_graph": graph[0]}, strict=False)
    whole = fixed(x)
    torch.testing.assert_close(prompt, whole[:, :5])
    for t in range(5, 9):
        out, state = layer.step(x[:, t], state)
        torch.testing.assert_close(out, whole[:, t])
        # Keeping A alone and making G of it again gives the same G, bit by bit.
        again = layer.deduce(state.deduced.A)
        assert all(torch.equal(*pair) for pair in zip(again, state.deduced, strict=True))
        assert torch.equal(state.deduced.G_LM, graph)


def test_the_graph_multiplies_keys_or_queries() -> None:
    layer, x = made(), some()
    q, k, v = layer.read(x)
    graph = layer.extend(x)[1].deduced.G_LM
    asked = F.scaled_dot_product_attention(q @ graph, k, v, is_causal=True)
    folded = F.scaled_dot_product_attention(q, k @ graph.mT, v, is_causal=True)
    torch.testing.assert_close(asked, folded)
    torch.testing.assert_close(layer(x), layer.proj(folded.transpose(1, 2).flatten(2)))


def test_the_order_of_tokens_does_not_change_the_graph_without_positions() -> None:
    x, order = some(), torch.tensor([3, 0, 6, 1, 2, 5, 4])
    for rotary in (False, True):
        layer = made(rotary=rotary)
        one, other = (layer.extend(each)[1].deduced for each in (x, x[:, order]))
        same = torch.allclose(one.A, other.A, rtol=1e-9) and torch.allclose(one.G_LM, other.G_LM, rtol=1e-9)
        assert same != rotary


@every_scope
def test_later_tokens_leak_into_a_graph_of_all(scope: str) -> None:
    layer, x = made(metric_scope=scope), some()
    changed = x.clone()
    changed[:, -1] = some(1)[:, 0]
    apart = (layer(x) - layer(changed)).abs().amax((0, 2))
    leaks = scope == "all"
    assert layer.is_causal != leaks
    assert (apart[0] == 0) and (apart[1:-1] > 1e-4).all() == leaks and apart[-1] > 1e-4  # token 0 sees itself only
    if not leaks:
        assert (apart[:-1] == 0).all()
    fixed = made(graph="given")
    assert ((fixed(x) - fixed(changed)).abs().amax((0, 2))[:-1] == 0).all()


def test_the_last_token_of_a_prefix_is_that_of_all() -> None:
    layer, x = made(), some()
    prefix = made(metric_scope="prefix")
    prefix.load_state_dict(layer.state_dict())
    whole, state = layer.extend(x)
    by_prefix, kept = prefix.extend(x)
    torch.testing.assert_close(by_prefix[:, -1], whole[:, -1])
    for ours, theirs in zip(kept.deduced, state.deduced, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert (by_prefix[:, 2] - whole[:, 2]).abs().max() > 1e-4


@pytest.mark.parametrize(("scope", "graph"), [("prefix", "learned"), ("all", "given"), ("all", "identity")])
def test_parts_of_any_length_are_the_whole(scope: str, graph: str) -> None:
    layer, x = made(metric_scope=scope, graph=graph), some(12)
    state, parts = None, []
    for part in x.split([1, 1, 5, 3, 2], 1):
        out, state = layer.extend(part, state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), layer(x))


@every_scope
def test_padding_at_the_end_changes_nothing(scope: str) -> None:
    layer, x = made(metric_scope=scope), some()
    visible = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])
    out = layer(x, visible)
    torch.testing.assert_close(out[:1, :5], layer(x[:1, :5]))
    torch.testing.assert_close(out[1:], layer(x[1:]))
    assert layer(x, torch.zeros(2, 7, dtype=torch.bool)).isfinite().all()


def test_the_loss_of_cycles() -> None:
    for matrix, expected in (
        (torch.ones(4, 4).tril(-1), 0.0),
        (torch.eye(3), 1.0),
        (torch.full((2, 2), 0.5), 0.280930),
    ):
        torch.testing.assert_close(dag_loss(matrix.double()), torch.tensor(expected).double(), rtol=0, atol=1e-6)
    both = torch.stack((torch.eye(3), torch.zeros(3, 3)))
    torch.testing.assert_close(dag_loss(both), torch.tensor(0.5))


def test_the_losses_of_cycles_are_added_in_training() -> None:
    layer, x = made(dag=(0.1, 0.0, 0.3)), some()
    deduced = layer.extend(x)[1].deduced
    terms = added_losses(layer)
    assert terms.keys() == {"dag_A_LM", "dag_G_LM"}
    torch.testing.assert_close(terms["dag_G_LM"], 0.3 * dag_loss(deduced.G_LM))
    torch.testing.assert_close(terms["dag_A_LM"], 0.1 * dag_loss(deduced.A_LM))
    terms["dag_G_LM"].backward()
    assert all(
        parameter.grad.any() for name, parameter in layer.named_parameters() if name.startswith(("mix", "power"))
    )
    layer.eval()(x)
    assert added_losses(layer) == {}


def test_the_graph_is_recorded_and_can_be_replaced() -> None:
    layer, x = made(), some()
    with mereo.record(layer) as trace:
        layer(x)
    torch.testing.assert_close(trace["graphs"], layer.extend(x)[1].deduced.G_LM)
    plain = made(graph="identity")
    plain.load_state_dict(layer.state_dict(), strict=False)
    with mereo.intervene(layer, {"graphs": lambda graph: torch.eye(4, dtype=graph.dtype).expand_as(graph)}):
        torch.testing.assert_close(layer(x), plain(x))


@every_scope
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_zeros_and_one_token_in_half_precision(scope: str, dtype: torch.dtype) -> None:
    layer = PowerLawGraphAttention(12, 3, units=2, hidden=5, metric_scope=scope).to(dtype)
    for tokens in (1, 7):
        assert layer(torch.zeros(1, tokens, 12, dtype=dtype)).isfinite().all()
    x = 100 * torch.randn(1, 50, 12)  # q^T q exceeds what float16 holds
    assert layer(x.to(dtype)).isfinite().all()


def test_bad_input() -> None:
    for arguments, message in (
        ({"num_heads": 5}, "num_heads 5"),
        ({"units": -1}, "units is -1"),
        ({"gates": 0}, "gates is 0"),
        ({"hidden": 0}, "hidden is 0"),
        ({"metric_scope": "prefx"}, "Did you mean 'prefix'"),
        ({"graph": "random"}, "graph is 'random'"),
        ({"dag": (0.1,)}, "three weights"),
        ({"dag": (0.1, -1, 0)}, r"dag\[1\] is -1"),
        ({"attn_drop": 1.0}, "attn_drop is 1.0"),
    ):
        with pytest.raises(UsageError, match=message):
            PowerLawGraphAttention(12, **{"num_heads": 3, **arguments})
    layer = made()
    for empty in (lambda: layer(some(0)), lambda: layer.extend(some(0))):
        with pytest.raises(UsageError, match="at least one token"):
            empty()
    with pytest.raises(UsageError, match="1 samples, and the state of 2"):
        layer.extend(some(1, 1), layer.extend(some())[1])
