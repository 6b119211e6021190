"""Mixture of heads: worked gates, a reference with loops, what inactive heads change, both executions, schedules."""

import math

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import added_losses
from mereo.errors import UsageError
from mereo.mechanisms.attention import HeadRouter, MoHAttention, MultiHeadAttention
from mereo.mechanisms.attention.sparse.head_dispatch import GROUPS
from mereo.mechanisms.attention.sparse.head_schedules import SCHEDULES, HeadSchedule, get_schedule

LN3 = math.log(3)


def attention(dim: int = 24, heads: int = 8, seed: int = 0, **options: object) -> MoHAttention:
    torch.manual_seed(seed)
    made = MoHAttention(dim, heads, **options).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    return made


@pytest.mark.parametrize(("gate", "expected"), [("paper", [0.125, 0.375, 0.375, 0.0]), ("code", [0.5, 1.5, 1.0, 0.0])])
def test_worked_gates(gate: str, expected: list[float]) -> None:
    router = HeadRouter(1, 4, 2, 1, gate)
    with torch.no_grad():
        router.stage.zero_()
        router.shared_heads.copy_(torch.tensor([[0.0], [LN3]]))
        router.routed_heads.copy_(torch.tensor([[LN3], [0.0]]))
    torch.testing.assert_close(router(torch.ones(1, 1, 1)).flatten(), torch.tensor(expected))


def test_zero_routers_are_plain_attention() -> None:
    plain, moh = MultiHeadAttention(24, 6).double(), MoHAttention(24, 6, shared=2, active=4).double()
    with torch.no_grad():
        for parameter in moh.router.parameters():
            parameter.zero_()
        layers = (plain.query, plain.key, plain.value)
        moh.qkv.weight.copy_(torch.cat([x.weight for x in layers]))
        moh.qkv.bias.copy_(torch.cat([x.bias for x in layers]))
    moh.proj.load_state_dict(plain.proj.state_dict())
    tokens = torch.randn(2, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(moh(tokens), plain(tokens))
    for shared, active in ((2, 1), (1, 3), (0, 2), (6, 0)):
        router = HeadRouter(24, 6, shared, active).double()
        for parameter in router.parameters():
            torch.nn.init.zeros_(parameter)
        gates = router(tokens)
        torch.testing.assert_close(gates[..., :shared], torch.ones(2, 7, shared, dtype=torch.float64))
        torch.testing.assert_close(
            gates[..., shared:].sort(-1).values[..., -active or 6 :].unique(), gates.new_ones(1 if active else 0)
        )


@pytest.mark.parametrize(("shared", "active"), [(2, 3), (1, 2), (0, 3), (8, 0)])
@pytest.mark.parametrize("gate", ["code", "paper"])
def test_equals_its_equations(shared: int, active: int, gate: str) -> None:
    moh, x = attention(shared=shared, active=active, gate=gate), torch.randn(2, 5, 24, dtype=torch.float64)
    out, heads, d = moh(x), 8, 3
    expected = torch.zeros_like(x)
    router = moh.router
    for b in range(2):
        q, k, v = moh.qkv(x[b]).chunk(3, -1)
        for t in range(5):
            token = x[b, t]
            gates = [0.0] * heads
            p_s = [1.0] * shared
            if shared > 1:
                p_s = torch.softmax(router.shared_heads @ token, 0).tolist()
            if shared < heads:
                scores = router.routed_heads @ token
                p_r = scores.softmax(0).tolist()
                chosen = sorted(range(heads - shared), key=lambda i: -scores[i].item())[:active]
                total = sum(p_r[i] for i in chosen)
            a1, a2 = (torch.softmax(router.stage @ token, 0).tolist()) if 0 < shared < heads else (0.5, 0.5)
            two = 2 if gate == "code" else (1 if 0 < shared < heads else 2)
            for i in range(shared):
                gates[i] = two * a1 * p_s[i] * (shared if gate == "code" else 1)
            if shared < heads:
                for i in chosen:
                    gates[shared + i] = two * a2 * p_r[i] * (active / total if gate == "code" else 1)
            parts = []
            for h in range(heads):
                s = slice(h * d, (h + 1) * d)
                couplings = (k[:, s] @ q[t, s] / math.sqrt(d)).softmax(0)
                parts.append(gates[h] * (couplings @ v[:, s]))
            expected[b, t] = moh.proj(torch.cat(parts))
    torch.testing.assert_close(out, expected)


def test_sums_and_numbers_of_gates() -> None:
    moh, x = attention(shared=2, active=3), torch.randn(2, 9, 24, dtype=torch.float64)
    gates = moh.router(x)
    assert ((gates[..., 2:] != 0).sum(-1) == 3).all()
    alphas = (x @ moh.router.stage.T).softmax(-1)
    torch.testing.assert_close(gates.sum(-1), 2 * alphas[..., 0] * 2 + 2 * alphas[..., 1] * 3)


def test_inactive_heads_change_nothing() -> None:
    moh, x = attention(shared=2, active=2), torch.randn(1, 6, 24, dtype=torch.float64)
    with mereo.record(moh) as trace:
        before = moh(x)
    gates = trace["router.gates"]
    assert trace["coupling"].shape == (1, 8, 6, 6) and gates.shape == (1, 6, 8)
    for head in range(2, 8):
        changed = attention(shared=2, active=2)
        with torch.no_grad():
            changed.qkv.bias[48 + 3 * head : 51 + 3 * head] += 1  # values of that head
        moved = (changed(x) - before).abs().sum(-1)[0] > 1e-9
        assert torch.equal(moved, gates[0, :, head] != 0)


@pytest.mark.parametrize(("gate", "uniform", "collapsed"), [("paper", 4 / 6, 1.0), ("code", 4.0, 6.0)])
def test_balance_loss(gate: str, uniform: float, collapsed: float) -> None:
    router = HeadRouter(6, 6, 0, 4, gate).train()
    with torch.no_grad():
        router.routed_heads.zero_()
    # Equal scores: any four heads are active, and P_i is 1/6.
    router(torch.randn(2, 5, 6))
    assert added_losses(router)["balance"].item() == pytest.approx(0.01 * uniform)
    with torch.no_grad():
        router.routed_heads[:4, 0] = 100.0
    router(torch.ones(2, 5, 6))
    assert added_losses(router)["balance"].item() == pytest.approx(0.01 * collapsed)
    router.eval()(torch.ones(2, 5, 6))
    assert added_losses(router) == {}


def test_balance_loss_spreads_the_heads() -> None:
    torch.manual_seed(0)
    router = HeadRouter(8, 6, 2, 1).train()
    tokens = torch.randn(4, 32, 8) + 1
    with torch.no_grad():
        router.routed_heads[0] += 0.5
    optimizer = torch.optim.Adam(router.parameters(), 0.05)

    def often() -> Tensor:
        return (router(tokens)[..., 2:] != 0).float().mean((0, 1))

    before = often().max()
    for _ in range(40):
        router(tokens)
        optimizer.zero_grad()
        added_losses(router)["balance"].backward()
        optimizer.step()
    assert before > 0.8 and often().max() < 0.5


def test_routing_by_queries() -> None:
    router = HeadRouter(8, 6, 2, 2, routing="queries")
    assert sum(p.numel() for p in router.parameters()) == 0
    q = torch.randn(2, 6, 5, 4, requires_grad=True)
    gates = router(torch.randn(2, 5, 8), q)
    assert set(gates.detach().unique().tolist()) == {0.0, 1.0} and (gates.sum(-1) == 4).all()
    norms = q[:, 2:].norm(dim=-1).transpose(1, 2)
    top = norms.topk(2, -1).indices
    assert (gates[..., 2:].gather(-1, top) == 1).all(), "the longest queries"
    scores = norms / norms.std(-1, keepdim=True)
    weights = torch.randn(2, 5, 4)
    (found,) = torch.autograd.grad((gates[..., 2:] * weights).sum(), q, retain_graph=True)
    (expected,) = torch.autograd.grad((scores.softmax(-1) * weights).sum(), q)
    torch.testing.assert_close(found, expected)
    assert router(torch.zeros(1, 3, 8), torch.zeros(1, 6, 3, 4)).isfinite().all()
    with pytest.raises(UsageError, match="queries is None"):
        router(torch.zeros(1, 3, 8))


@pytest.mark.parametrize(("shared", "active"), [(2, 2), (0, 1), (3, 5)])
def test_gathering_equals_computing_all_heads(shared: int, active: int) -> None:
    torch.manual_seed(1)
    x, results = torch.randn(3, 11, 24, dtype=torch.float64), []
    for method in ("gathered", "dense"):
        moh = attention(shared=shared, active=active, method=method)
        given = x.clone().requires_grad_()
        out = moh(given)
        (out * torch.linspace(0, 1, 24, dtype=torch.float64)).sum().backward()
        results.append([out.detach(), given.grad, *(p.grad for p in moh.parameters())])
    torch.testing.assert_close(*results)
    assert GROUPS > 1


def test_heads_that_no_token_or_every_token_chooses() -> None:
    moh = attention(shared=1, active=1, method="gathered")
    with torch.no_grad():
        moh.router.routed_heads.zero_()
        moh.router.routed_heads[3] = 1.0
    x = torch.rand(2, 9, 24, dtype=torch.float64) + 0.1
    out = moh(x)
    moh.method = "dense"
    torch.testing.assert_close(out, moh(x))


def test_gathering_is_chosen_where_it_pays() -> None:
    moh = attention(shared=2, active=2)
    few, many = torch.randn(1, 16, 24, dtype=torch.float64), torch.randn(1, 400, 24, dtype=torch.float64)
    sizes: list[int] = []
    import mereo.mechanisms.attention.sparse.head_dispatch as dispatch

    original = dispatch.METHODS["gathered"]
    try:
        dispatch.METHODS["gathered"] = (lambda call: sizes.append(call.q.shape[2]) or original[0](call), original[1])
        moh(few), moh(many)
        with mereo.record(moh):
            moh(many)
    finally:
        dispatch.METHODS["gathered"] = original
    assert sizes == [400], "not for few tokens, and not while it is watched"
    moh.method = "gathered"
    with pytest.raises(UsageError, match="cannot run here"), mereo.record(moh):
        moh(many)


def test_parameters() -> None:
    def count(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    assert count(MoHAttention(96, 8, shared=2, active=4)) - count(MultiHeadAttention(96, 8)) == 960
    assert count(HeadRouter(96, 8, 1, 4)) == 96 * 7 + 2 * 96 and count(HeadRouter(96, 8, 8, 0)) == 96 * 8
    wide = MoHAttention(96, 8, shared=8, active=0, head_dim=20)
    assert wide.qkv.weight.shape == (480, 96) and wide.proj.weight.shape == (96, 160)


def test_published_schedules() -> None:
    shares = {"vit_b_75": 0.750, "vit_b_50": 0.500, "vit_s_80": 0.7995, "vit_s_75": 0.753, "llama3_8b": 0.75}
    for name, share in shares.items():
        assert get_schedule(name).active_share == pytest.approx(share, abs=6e-4)
    # Reported parameters minus the routers' are one host's.
    assert 90_020_632 - SCHEDULES["vit_b_75"].router_parameters == 89_721_496
    assert 90_023_512 - SCHEDULES["vit_b_50"].router_parameters == 89_721_496
    for schedule in SCHEDULES.values():
        expected = sum(
            n * sum(p.numel() for p in HeadRouter(dim, h, s, a).parameters())
            for n, dim, h, s, a in zip(
                schedule.layers, schedule.dims, schedule.heads, schedule.shared, schedule.active, strict=True
            )
        )
        assert schedule.router_parameters == expected
    with pytest.raises(UsageError, match="unknown schedule"):
        get_schedule("vit_x")
    with pytest.raises(UsageError, match="differ in number"):
        HeadSchedule((1,), (8,), (4, 4), (2,), (1,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared": 9}, "shared is 9"), ({"shared": 2, "active": 7}, "active is 7"), ({"active": 0}, "from 1 to 6"),
        ({"shared": 8, "active": 1}, "from 0 to 0"), ({"gate": "soft"}, "gate is 'soft'"),
        ({"routing": "keys"}, "routing is 'keys'"), ({"num_heads": 5}, "give a divisor"),
        ({"method": "x"}, "method is"),
    ],
)  # fmt: skip
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MoHAttention(24, **options)
