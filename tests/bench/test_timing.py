"""Medians, quartiles, order of rounds, and what timing leaves as it was."""

import gc

import pytest
import torch

from mereo.bench.timing import interleave, quartiles, quiet, threads


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([3.0], (3, 3, 3)), ([4, 1, 3, 2], (2.5, 1.75, 3.25)), ([5, 1, 2, 4, 3], (3, 2, 4)), ([1, 2], (1.5, 1.25, 1.75))],
)
def test_quartiles(samples, expected):
    found = quartiles(samples)
    assert (found.median, found.low, found.high) == expected
    assert found.count == len(samples)


def test_contenders_take_turns(fake):
    order = []

    def work(name, seconds):
        def call():
            order.append(name)
            fake.pass_time(seconds)

        return call

    calls = {"a": work("a", 0.5), "b": work("b", 0.25), "c": work("c", 0.25)}
    samples = interleave(calls, seconds=1.0, least=2, clock=fake.clock)
    # One call each to see how long it takes, then rounds of a second until three contenders had a second each.
    assert "".join(order) == "abc" * 5
    assert samples["a"].wall == [0.5] * 4 and samples["b"].wall == [0.25] * 4
    assert samples["a"].cpu == [1.0] * 4


def test_the_least_rounds_are_made_whatever_they_take(fake):
    samples = interleave({"slow": lambda: fake.pass_time(100.0)}, seconds=1.0, least=3, clock=fake.clock)
    assert samples["slow"].wall == [100.0] * 3


def test_short_work_is_repeated_within_a_sample(fake):
    calls = []

    def call():
        calls.append(1)
        fake.pass_time(2.0**-12)

    samples = interleave({"short": call}, seconds=1e-9, least=2, clock=fake.clock)
    assert len(calls) == 1 + 2 * 5  # 2^-12 s go into a millisecond 4.1 times
    assert samples["short"].wall == [2.0**-12] * 2


def test_the_most_rounds(fake):
    assert len(interleave({"a": lambda: None}, seconds=1.0, least=1, most=7, clock=fake.clock)["a"].wall) == 7


def test_the_collector_is_off_meanwhile_and_on_again_after_an_error(fake):
    seen = []
    with pytest.raises(ZeroDivisionError):
        interleave({"a": lambda: (seen.append(gc.isenabled()), 1 / 0)}, seconds=1, least=1, clock=fake.clock)
    assert seen == [False] and gc.isenabled()
    gc.disable()
    try:
        with quiet():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_are_restored():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
