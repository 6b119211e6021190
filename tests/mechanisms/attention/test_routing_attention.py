"""Routing attention against loops over clusters and tokens, and numbers worked by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import Coupling, added_losses
from mereo.core.kernels.clustered import distances, members, prefix_members
from mereo.errors import UsageError
from mereo.mechanisms.attention import RoutingAttention, routing_attention
from mereo.mechanisms.attention.local.sequence_blocks import SequencePositions, attend_blocks
from mereo.mechanisms.attention.sparse.clusters import Clusters, normalised

POINTS = torch.tensor([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1]], dtype=torch.float64).view(1, 1, 4, 2)
AXES = torch.tensor([[[1.0, 0], [0, 1]]], dtype=torch.float64)
VALUES = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64).view(1, 1, 4, 1)


def nearest_of(x: Tensor, centroid: Tensor, window: int, there: list[int]) -> list[int]:
    """The nearest of some tokens; of equal distances the first."""
    return sorted(sorted(there, key=lambda n: ((x[n] - centroid).square().sum().item(), n))[:window])


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, centroids: Tensor, window: int, causal: bool, strict: bool, mask: Tensor | None
) -> Tensor:
    """The equations, token by token and cluster by cluster."""
    batch, heads, tokens, dim = q.shape
    out = q.new_zeros(batch, heads, tokens, v.shape[-1])
    for b in range(batch):
        every_key = [j for j in range(k.shape[2]) if mask is None or mask[b, j]]
        for h in range(heads):
            for i in range(tokens):
                if mask is not None and not mask[b, i]:
                    continue
                every_query = [n for n in range(tokens) if mask is None or mask[b, n]]
                results = []
                for centroid in centroids[h]:
                    past = [n for n in every_query if not strict or n <= i]
                    if i not in nearest_of(q[b, h], centroid, window, past):
                        continue
                    keys = nearest_of(k[b, h], centroid, window, [j for j in every_key if not strict or j <= i])
                    keys = [j for j in keys if not causal or j <= i]
                    if not keys:
                        results.append(torch.zeros_like(out[b, h, i]))
                        continue
                    scores = torch.stack([q[b, h, i] @ k[b, h, j] for j in keys]) * dim**-0.5
                    results.append(scores.softmax(0) @ torch.stack([v[b, h, j] for j in keys]))
                if results:
                    out[b, h, i] = torch.stack(results).mean(0)
    return out


def inputs(tokens: int = 11, senders: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    senders = tokens if senders is None else senders
    q = torch.randn(2, 2, tokens, 4, dtype=torch.float64)
    k, v = torch.randn(2, 2, senders, 4, dtype=torch.float64), torch.randn(2, 2, senders, 3, dtype=torch.float64)
    return q, k, v, torch.randn(2, 3, 4, dtype=torch.float64)


CASES = [
    (shared, causal, strict, window, masked)
    for shared in (True, False)
    for causal, strict in ((False, False), (True, False), (True, True))
    for window, masked in ((4, False), (30, False), (5, True))
]


@pytest.mark.parametrize(("shared", "causal", "strict", "window", "masked"), CASES)
def test_equals_the_loops(shared: bool, causal: bool, strict: bool, window: int, masked: bool) -> None:
    q, k, v, centroids = inputs()
    mask = None
    if masked:
        mask = torch.ones(2, 11, dtype=torch.bool)
        mask[0, 8:], mask[1, :7] = False, False  # the second has fewer tokens than a cluster
    given = [x.requires_grad_() for x in ((q, v) if shared else (q, k, v))]
    out = routing_attention(q, None if shared else k, v, centroids, window, causal=causal, strict=strict, mask=mask)
    expected = by_loops(q, q if shared else k, v, centroids, window, causal, strict, mask)
    if mask is not None:
        out, expected = (x * mask[:, None, :, None] for x in (out, expected))
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    ours = torch.autograd.grad((out * weights).sum(), given)
    for mine, theirs in zip(ours, torch.autograd.grad((expected * weights).sum(), given), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_queries_and_keys_may_differ_in_number() -> None:
    q, k, v, centroids = inputs(7, 9)
    expected = by_loops(q, k, v, centroids, 8, False, False, None)
    torch.testing.assert_close(routing_attention(q, k, v, centroids, 8), expected)


def test_four_points_by_hand() -> None:
    apart = distances(POINTS, AXES)
    assert members(apart, 2).flatten(0, 1).tolist() == [[[0, 1], [2, 3]]]
    out = routing_attention(POINTS, None, VALUES, AXES, 2, causal=True, scale=2**-0.5)
    torch.testing.assert_close(out.flatten(), torch.tensor([1, 1.5353, 3, 3.5353]).double(), rtol=0, atol=1e-4)


def test_a_token_in_no_cluster_and_one_in_two() -> None:
    centroids = torch.tensor([[[1.0, 0], [0.6, 0.8]]], dtype=torch.float64)
    assert members(distances(POINTS, centroids), 2).flatten(0, 1).tolist() == [[[0, 1], [1, 2]]]
    out = routing_attention(POINTS, None, VALUES, centroids, 2, causal=True).flatten()
    first = routing_attention(POINTS, None, VALUES, centroids[:, :1], 2, causal=True).flatten()
    second = routing_attention(POINTS, None, VALUES, centroids[:, 1:], 2, causal=True).flatten()
    assert out[3] == 0 and out[1] == (first[1] + second[1]) / 2 and second[1] == 2


def test_prefixes_hold_the_nearest_so_far() -> None:
    apart = torch.tensor([3.0, 1, 2, 2, 0])
    listed = [row.nonzero().flatten().tolist() for row in prefix_members(apart, 2)]
    assert listed == [[0], [0, 1], [1, 2], [1, 2], [1, 4]]


@pytest.mark.parametrize("causal", [False, True])
def test_one_cluster_of_all_tokens_is_dense_attention(causal: bool) -> None:
    q, _, v, centroids = inputs()
    q = normalised(q)
    dense = torch.nn.functional.scaled_dot_product_attention(q, q, v, is_causal=causal)
    out = routing_attention(q, None, v, centroids[:, :1], 11, causal=causal)
    torch.testing.assert_close(out, dense)


def test_permuting_tokens_permutes_the_output() -> None:
    q, k, v, centroids = inputs()
    order = torch.randperm(11)
    out = routing_attention(*(x[:, :, order] for x in (q, k, v)), centroids, 4)
    torch.testing.assert_close(out, routing_attention(q, k, v, centroids, 4)[:, :, order])


def test_every_cluster_has_as_many_members() -> None:
    q, _, _, centroids = inputs()
    lists = members(distances(q, centroids), 5)
    assert lists.shape == (2, 2, 3, 5) and (lists[..., 1:] > lists[..., :-1]).all()


# Centroids.


def test_counts_and_sums_of_hard_clusters_by_hand() -> None:
    clusters = Clusters(1, 2, 2).double()
    clusters.centroids.copy_(AXES)
    nearest = distances(POINTS, AXES).argmin(2)
    counts, sums = clusters.assigned(POINTS, nearest)
    assert counts.tolist() == [[2, 2]]
    torch.testing.assert_close(sums / 2, torch.tensor([[[0.9, 0.3], [0.3, 0.9]]]).double())
    mask = torch.tensor([[True, False, True, True]])
    assert clusters.assigned(POINTS, nearest, mask)[0].tolist() == [[1, 2]]


def test_centroids_follow_by_exponential_averages() -> None:
    clusters = Clusters(1, 2, 2, decay=0.9).double()
    clusters.centroids.copy_(AXES)
    clusters.sums.copy_(AXES)
    counts, sums = clusters.assigned(POINTS, distances(POINTS, AXES).argmin(2))
    clusters.follow(counts, sums)
    count, total = 0.9 * 1 + 0.1 * 2, [[0.9 + 0.1 * 1.8, 0.1 * 0.6], [0.1 * 0.6, 0.9 + 0.1 * 1.8]]
    smooth = (count + 1e-5) / (2 * count + 2e-5) * 2 * count
    torch.testing.assert_close(clusters.counts, torch.full((1, 2), count).double())
    torch.testing.assert_close(clusters.centroids, torch.tensor([total]).double() / smooth)


def test_the_first_step_hardly_moves_a_centroid() -> None:
    torch.manual_seed(0)
    clusters = Clusters(2, 3, 4)
    before = clusters.centroids.clone()
    x = normalised(torch.randn(2, 2, 9, 4))
    clusters.follow(*clusters.assigned(x, distances(x, before).argmin(2)))
    assert 0 < (clusters.centroids - before).norm(dim=-1).max() < 0.1


def test_an_empty_cluster_and_tokens_that_are_not_numbers_leave_finite_centroids() -> None:
    clusters = Clusters(1, 3, 2)
    clusters.centroids[0] = torch.tensor([[1.0, 0], [0, 1], [50, 50]])
    x = POINTS.float().clone()
    x[0, 0, 3] = torch.nan
    apart = distances(x, clusters.centroids)
    assert 3 not in members(apart, 3)
    counts, sums = clusters.assigned(x, apart.argmin(2))
    assert counts.tolist() == [[2, 1, 0]] and sums.isfinite().all()
    for _ in range(50):
        clusters.follow(counts.clone(), sums.clone())
    assert clusters.centroids.isfinite().all()


def _follow_as_one_of_two(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    clusters, x = Clusters(1, 3, 2, decay=0.5), torch.randn(4, 1, 5, 2)[2 * rank : 2 * rank + 2]
    clusters.follow(*clusters.assigned(x, distances(x, clusters.centroids).argmin(2)))
    torch.save(clusters.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_processes_add_their_counts_and_sums(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_follow_as_one_of_two, (str(tmp_path),), 2)
    torch.manual_seed(0)
    clusters, x = Clusters(1, 3, 2, decay=0.5), torch.randn(4, 1, 5, 2)
    clusters.follow(*clusters.assigned(x, distances(x, clusters.centroids).argmin(2)))
    for rank in range(2):
        for name, value in torch.load(tmp_path / f"{rank}.pt").items():
            torch.testing.assert_close(value, clusters.get_buffer(name))


def test_the_loss_vanishes_on_centroids_and_moves_tokens_only() -> None:
    clusters = Clusters(1, 2, 2).double()
    clusters.centroids.copy_(AXES)
    on = AXES.unsqueeze(0)
    assert clusters.commitment(on, distances(on, AXES).argmin(2)) == 0
    x = POINTS.clone().requires_grad_()
    clusters.centroids.requires_grad_()
    loss = clusters.commitment(x, distances(x, AXES).argmin(2))
    loss.backward()
    torch.testing.assert_close(loss.item(), (2 * (0.2**2 + 0.6**2)) / 4)
    assert x.grad is not None and x.grad.any() and clusters.centroids.grad is None


# Local blocks.


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 8, 11])
def test_blocks_equal_the_loops(causal: bool, tokens: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, tokens, 4, dtype=torch.float64) for _ in range(3))
    positions = SequencePositions(2, 4, causal).double()
    mask = torch.ones(2, tokens, dtype=torch.bool)
    mask[1, tokens // 2] = tokens == 1
    expected = torch.zeros_like(v)
    for b in range(2):
        for i in range(tokens):
            first, end = (i // 4 - 1) * 4, i + 1 if causal else (i // 4 + 2) * 4
            seen = [j for j in range(max(first, 0), min(end, tokens)) if mask[b, j]]
            for h in range(2):
                scores = [q[b, h, i] @ k[b, h, j] / 2 + positions.table[h, j - i + 7] for j in seen]
                expected[b, h, i] = torch.stack(scores).softmax(0) @ v[b, h, seen]
    out = attend_blocks(q, k, v, 4, Coupling("senders"), causal, positions, mask)
    torch.testing.assert_close(out, expected)


# The module.


def module_of(**changes: Any) -> RoutingAttention:
    torch.manual_seed(0)
    arguments = {"clusters": 3, "window": 4, "block": 4, "causal": True, **changes}
    return RoutingAttention(16, 2, 2, **arguments).double()


def test_the_module_equals_its_equations() -> None:
    for changes in ({}, {"causal": False}, {"share_qk": False}, {"strict": "always"}):
        module, tokens = module_of(**changes).eval(), torch.randn(2, 11, 16, dtype=torch.float64)
        parts = [x.unflatten(-1, (2, 4)).transpose(1, 2) for x in module.local_qkv(tokens).chunk(3, -1)]
        local = attend_blocks(*parts, 4, Coupling("senders"), module.causal, module.positions)
        q = normalised(module.query(tokens).unflatten(-1, (2, 4)).transpose(1, 2))
        k = q if module.key is None else normalised(module.key(tokens).unflatten(-1, (2, 4)).transpose(1, 2))
        v = module.value(tokens).unflatten(-1, (2, 4)).transpose(1, 2)
        routed = by_loops(q, k, v, module.clusters.centroids, 4, module.causal, module.keeps_to_the_past, None)
        expected = module.proj(torch.cat((local, routed), 1).transpose(1, 2).flatten(2))
        torch.testing.assert_close(module(tokens), expected)
        assert (module.key is None) == (changes in ({}, {"strict": "always"}))


def test_couplings_are_recorded_over_all_tokens() -> None:
    module, tokens = module_of().eval(), torch.randn(2, 11, 16, dtype=torch.float64)
    plain = module(tokens)
    with mereo.record(module) as trace:
        torch.testing.assert_close(module(tokens), plain)
    routed, local = trace["coupling"], trace["local_coupling"]
    assert routed.shape == local.shape == (2, 2, 11, 11)
    torch.testing.assert_close(local.sum(-1), torch.ones(2, 2, 11).double())
    lists = members(
        distances(normalised(module.query(tokens).unflatten(-1, (2, 4))).transpose(1, 2), module.clusters.centroids), 4
    )
    for b in range(2):
        for h in range(2):
            inside = {n for cluster in lists[b, h].tolist() for n in cluster}
            for n in range(11):
                torch.testing.assert_close(routed[b, h, n].sum().item(), float(n in inside))
    assert not routed.triu(1).any()
    v = module.value(tokens).unflatten(-1, (2, 4)).transpose(1, 2)
    own = module.local_qkv(tokens)[..., 16:].unflatten(-1, (2, 4)).transpose(1, 2)
    merged = torch.cat((local @ own, routed @ v), 1).transpose(1, 2).flatten(2)
    torch.testing.assert_close(module.proj(merged), plain)


def test_strict_couplings_are_recorded_over_all_tokens() -> None:
    module, tokens = module_of(strict="always").eval(), torch.randn(2, 7, 16, dtype=torch.float64)
    plain = module(tokens)
    with mereo.record(module) as trace:
        torch.testing.assert_close(module(tokens), plain)
    sums = trace["coupling"].sum(-1)
    assert ((sums - 1).abs().minimum(sums) < 1e-12).all() and not trace["coupling"].triu(1).any()


def test_members_that_depend_on_later_tokens_are_what_strict_avoids() -> None:
    torch.manual_seed(1)
    tokens = torch.randn(1, 12, 16, dtype=torch.float64)
    later = torch.cat((tokens[:, :6], torch.randn(1, 6, 16, dtype=torch.float64)), 1)
    for strict in ("never", "evaluation", "always"):
        module = module_of(strict=strict)
        for mode in (False, True):
            module.train(mode)
            same = torch.allclose(module(tokens)[:, :6], module(later)[:, :6])
            assert same == (strict == "always" or (strict == "evaluation" and not mode))


@pytest.mark.parametrize("changes", [{}, {"share_qk": False}, {"window": 20}, {"positions": False}])
def test_steps_equal_strict(changes: dict[str, Any]) -> None:
    module = module_of(strict="always", **changes).eval()
    tokens, state, parts = torch.randn(2, 13, 16, dtype=torch.float64), None, []
    for token in tokens.unbind(1):
        out, state = module.step(token, state)
        parts.append(out)
    torch.testing.assert_close(torch.stack(parts, 1), module(tokens))
    assert state is not None and state.local[0].shape[2] <= 8 and state.keys.shape[3] == module.window


def test_training_moves_the_buffers_once_and_evaluation_never() -> None:
    module, tokens = module_of(decay=0.9), torch.randn(2, 11, 16, dtype=torch.float64)
    before = {name: value.clone() for name, value in module.clusters.named_buffers()}
    module.eval()(tokens)
    assert all(torch.equal(value, before[name]) for name, value in module.clusters.named_buffers())
    assert {"clusters.centroids", "clusters.counts", "clusters.sums"} <= module.state_dict().keys()
    q = normalised(module.query(tokens).unflatten(-1, (2, 4))).transpose(1, 2)
    counts, sums = module.clusters.assigned(q, distances(q, module.clusters.centroids).argmin(2))
    module.train()(tokens)
    torch.testing.assert_close(module.clusters.counts, 0.9 * before["counts"] + 0.1 * counts)
    torch.testing.assert_close(module.clusters.sums, 0.9 * before["sums"] + 0.1 * sums)
    assert counts.sum() == 2 * 2 * 11


def test_queries_and_keys_of_their_own_both_count() -> None:
    module, tokens = module_of(share_qk=False, decay=0.0), torch.randn(2, 11, 16, dtype=torch.float64)
    module.train()(tokens)
    loss = added_losses(module)["clusters"]
    assert module.clusters.counts.sum() == 2 * 2 * 2 * 11 and loss > 0
    (gradient,) = torch.autograd.grad(loss, module.key.weight)
    assert gradient.any()


def test_the_loss_is_beta_times_the_mean_squared_distance() -> None:
    module, tokens = module_of(beta=0.5).train(), torch.randn(2, 11, 16, dtype=torch.float64)
    centroids = module.clusters.centroids.clone()
    module(tokens)
    q = normalised(module.query(tokens).unflatten(-1, (2, 4))).transpose(1, 2)
    torch.testing.assert_close(added_losses(module), {"clusters": 0.5 * distances(q, centroids).amin(2).mean()})


@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_shorter_than_a_cluster(tokens: int, causal: bool) -> None:
    module = module_of(causal=causal)
    x = torch.randn(2, tokens, 16, dtype=torch.float64, requires_grad=True)
    out = module(x)
    out.sum().backward()
    assert out.shape == x.shape and out.isfinite().all() and x.grad.isfinite().all()


def test_local_or_routed_heads_only() -> None:
    tokens = torch.randn(2, 9, 12)
    for local, routed in ((3, 0), (0, 3)):
        module = RoutingAttention(12, local, routed, clusters=2, window=3, causal=True)
        with mereo.record(module) as trace:
            out = module(tokens)
        assert out.shape == tokens.shape and len(trace) == 1 and len(added_losses(module)) == (routed > 0)
        state = None
        for token in tokens.unbind(1):
            _, state = module.eval().step(token, state)


def test_a_token_that_is_not_a_number_leaves_the_buffers_and_other_samples_finite() -> None:
    for strict in ("never", "always"):
        module, tokens = module_of(strict=strict), torch.randn(2, 9, 16, dtype=torch.float64)
        tokens[0, 7] = torch.nan
        out = module(tokens)
        assert out[1].isfinite().all() and all(b.isfinite().all() for b in module.buffers())


def test_a_query_whose_cluster_has_no_earlier_key_becomes_zero() -> None:
    k = POINTS.flip(2)
    out = routing_attention(POINTS, k, VALUES, AXES, 2, causal=True).flatten()
    assert out.isfinite().all() and out[:2].tolist() == [0, 0] and (out[2:] > 0).all()


def test_dropout_acts_in_training_only() -> None:
    module, tokens = module_of(attn_drop=0.5), torch.randn(2, 9, 16, dtype=torch.float64)
    assert not torch.equal(module(tokens), module(tokens))
    module.eval()
    assert torch.equal(module(tokens), module(tokens))


def streamed(*tokens: torch.Tensor) -> None:
    module, state = RoutingAttention(8, 2, 2, causal=True).eval(), None
    for token in tokens:
        _, state = module.step(token, state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RoutingAttention(10, 2, 2), "multiple of their number"),
        (lambda: RoutingAttention(10, 0, 0), "at least one head"),
        (lambda: RoutingAttention(8, 2, 2, strict="always"), "causal=False"),
        (lambda: RoutingAttention(8, 2, 2, window=0), "window is 0"),
        (lambda: RoutingAttention(8, 2, 2, decay=1.0), "decay is 1.0"),
        (lambda: RoutingAttention(8, 2, 2, beta=-1.0), "beta is -1.0"),
        (lambda: RoutingAttention(8, 2, 2).step(torch.randn(1, 8)), "causal=True"),
        (lambda: RoutingAttention(8, 2, 2)(torch.randn(1, 0, 8)), "at least one token"),
        (lambda: RoutingAttention(8, 2, 2, causal=True).step(torch.randn(1, 3, 8)), r"must be \(batch, dim\)"),
        (lambda: streamed(torch.randn(2, 8), torch.randn(1, 8)), "1 samples, and the state of 2"),
        (lambda: routing_attention(POINTS, None, VALUES[:, :, :3], AXES, 2), "of one length"),
        (lambda: routing_attention(POINTS, None, VALUES, AXES[0], 2), "centroids are"),
        (lambda: routing_attention(POINTS, None, VALUES, AXES, 0), "window is 0"),
        (lambda: routing_attention(POINTS, POINTS[:, :, :3], VALUES[:, :, :3], AXES, 2, causal=True), "must be equal"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()
