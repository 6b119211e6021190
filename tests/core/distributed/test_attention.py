"""Attention over several processes equals attention in one: outputs, gradients, what is sent, disagreement."""

import pytest
import torch

import sharded_checks as checks
from mereo.core import Coupling
from mereo.core.distributed import count_traffic, distributed_attention, shard, unshard
from mereo.errors import UsageError
from processes import in_processes, needs_gloo

MODES = ("ring", "allgather", "alltoall")


@pytest.mark.long
@needs_gloo
@pytest.mark.parametrize("size", [2, 4])
def test_every_mode_equals_one_process(size: int) -> None:
    results = in_processes(size, checks.every_way, 16, MODES)
    for mode in MODES:
        shard_of = 2 * 16 * checks.HEADS * checks.DIM // size  # two images
        forward = {"alltoall": 4 * shard_of * (size - 1) // size}.get(mode, 2 * (size - 1) * shard_of)
        backward = 2 * (2 * size - 1) * shard_of if mode == "ring" else forward
        for found in results:
            for name, (error, sent, back) in found.items():
                if name.startswith(mode):
                    assert error < 1e-12, name
                    lse = mode == "alltoall" and name.endswith("True")
                    more = 2 * 16 * checks.HEADS // size * (size - 1) // size if lse else 0
                    assert (sent, back) == (forward + more, backward + more), name


@pytest.mark.long
@needs_gloo
def test_lengths_that_do_not_divide() -> None:
    for found in in_processes(4, checks.every_way, 13, MODES):
        assert max(error for error, _, _ in found.values()) < 1e-12
    for found in in_processes(3, checks.every_way, 2, ("ring", "allgather")):
        assert max(error for error, _, _ in found.values()) < 1e-12, "fewer tokens than processes"


@needs_gloo
def test_other_executions() -> None:
    for found in in_processes(2, checks.other_executions):
        assert max(error for name, error in found.items() if name.startswith("block")) < 1e-12
        assert max(error for name, error in found.items() if "float32" in name) < 1e-5
        assert found["bfloat16"] < 0.1 and len(found) == 5


@needs_gloo
def test_cross_attention_of_uneven_shards() -> None:
    for size in (2, 4):
        assert max(in_processes(size, checks.cross_attention)) < 1e-12


@needs_gloo
def test_all_processes_raise_where_one_is_wrong() -> None:
    results = in_processes(2, checks.refusals)
    for found in results:
        assert found.pop("afterwards") == "nothing"
        assert "nothing" not in found.values() and len(found) == 13
    first, second = results
    assert "heads differs" in first["heads"] and "4, 8" in first["heads"] and first["heads"] == second["heads"]
    assert "must be floating point, (batch" in first["axes of one"] and "process 0 of 2" in second["axes of one"]
    assert "allgather, ring" in first["mode"] and "'rung'" in first["unknown mode"]
    assert "gradients differs" in first["gradients"] and "[4, 4]" in first["zigzag"] and "dropout" in first["dropout"]
    assert "inner axes differs" in first["unshard"]


@needs_gloo
def test_huge_inputs_and_empty_parts() -> None:
    assert all(in_processes(2, checks.nothing_is_nan))


def test_one_process_is_plain_attention() -> None:
    q, k, v = (torch.randn(2, 4, 9, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for causal in (False, True):
        scores = q @ k.mT * 8**-0.5
        if causal:
            scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), float("-inf"))
        expected = torch.autograd.grad((scores.softmax(-1) @ v).square().sum(), (q, k, v), retain_graph=True)
        for mode in (*MODES, "heads"):
            with count_traffic() as traffic:
                out, lse = distributed_attention(q, k, v, None, mode, causal, return_lse=True)
                plain = distributed_attention(q, k, v, None, mode, causal)
                blocks = distributed_attention(q, k, v, None, mode, causal, 2)
            assert traffic.elements == 0
            torch.testing.assert_close(lse, scores.logsumexp(-1))
            for each in (out, plain, blocks):
                torch.testing.assert_close(each, scores.softmax(-1) @ v)
                found = torch.autograd.grad(each.square().sum(), (q, k, v))
                torch.testing.assert_close(found, expected)
    assert torch.equal(shard(q, None, 2, "zigzag"), q) and unshard(q, None) is q


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "star"}, "mode is 'star'"), ({"layout": "x"}, "layout is 'x'"), ({"block": 0}, "block is 0"),
        ({"group": "world"}, "group is a str"),
        ({"coupling": Coupling("receivers")}, "over the senders"),
    ],
)  # fmt: skip
def test_bad_input(options: dict[str, object], message: str) -> None:
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UsageError, match=message):
        distributed_attention(x, x, x, **options)


def test_shapes_that_do_not_fit() -> None:
    x = torch.zeros(1, 2, 3, 4)
    for q, k, v in ((x, x[:, :1], x), (x, x, x[:, :, :2]), (x[0], x, x), (x.int(), x, x), (x, x.double(), x)):
        with pytest.raises(UsageError):
            distributed_attention(q, k, v)
    with pytest.raises(UsageError, match="as many queries as keys"):
        distributed_attention(x, x[:, :, :2], x[:, :, :2], causal=True)
