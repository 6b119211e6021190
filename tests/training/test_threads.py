"""The number of threads of a training of a given time, with steps whose seconds the test states."""

import pytest
import torch

from mereo.training import threads
from mereo.training.threads import Threads, threads_kept, use_fastest

CPU = torch.device("cpu")


@pytest.fixture
def processor(monkeypatch):
    """A processor of four cores: its present number of threads, and a clock."""
    state = {"threads": 4, "now": 0.0, "load": 0.0}
    monkeypatch.setattr("os.getloadavg", lambda: (state["load"], 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: state["threads"])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: state.update(threads=count))
    monkeypatch.setattr(threads, "monotonic", lambda: state["now"])
    return state


def quiet(count):
    return 0.4 / count


def beside_others(count):
    return 0.2 * count**2


@pytest.mark.parametrize(("seconds", "fastest"), [(quiet, 4), (beside_others, 1)])
@pytest.mark.parametrize("load", [0.0, 4.0])
def test_most_steps_are_as_fast_as_they_can_be(processor, seconds, fastest, load):
    processor["load"] = load
    choice, steps = Threads(CPU, chosen=True), 0
    assert processor["threads"] == (1 if load else 4)
    while processor["now"] < 300:
        took, steps = seconds(processor["threads"]), steps + 1
        processor["now"] += took
        choice.took(took)
    assert steps > 0.85 * 300 / seconds(fastest)


def test_it_follows_programs_that_start_and_end(processor):
    choice, most = Threads(CPU, chosen=True), []
    for seconds, fastest in ((quiet, 4), (beside_others, 1), (quiet, 4)):
        end, slow = processor["now"] + 200, 0.0
        while processor["now"] < end:
            took = seconds(processor["threads"])
            processor["now"] += took
            slow += took * (processor["threads"] != fastest)
            choice.took(took)
        most.append(slow)
    assert max(most) < 60


def test_a_stated_number_and_other_devices_and_trainings_of_epochs_are_left_alone(processor, monkeypatch):
    assert Threads(torch.device("meta"), chosen=True).counts == [4]
    assert Threads(CPU, chosen=False).counts == [4]
    assert Threads(CPU, chosen=True).counts == [4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    choice = Threads(CPU, chosen=True)
    for _ in range(100):
        choice.took(1.0)
    assert processor["threads"] == 4
    use_fastest(CPU, lambda: 1.0)
    assert processor["threads"] == 4


@pytest.mark.parametrize(("seconds", "fastest"), [(quiet, 4), (beside_others, 1), (lambda n: abs(n - 2), 2)])
def test_the_fastest_number_is_kept_until_the_end(processor, seconds, fastest):
    with threads_kept():
        use_fastest(CPU, lambda: seconds(processor["threads"]))
        assert processor["threads"] == fastest
    assert processor["threads"] == 4
