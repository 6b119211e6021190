"""Memory of the machine, and of a container with less."""

import pytest

from mereo.runtime import memory


@pytest.fixture
def group(tmp_path, monkeypatch):
    """group(limit, used): a control group of those many bytes."""
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)

    def write(limit, used):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")

    return write


def test_a_container_may_have_less_than_the_machine(group):
    group(3000, 1000)
    assert memory.available_memory() == memory.free_memory("cpu") == 2000
    group(1000, 3000)
    assert memory.available_memory() == 0


@pytest.mark.parametrize("limit", ["max", 2**60])
def test_without_a_limit_the_memory_is_that_of_the_machine(group, limit):
    group(limit, 0)
    assert 0 < memory.available_memory() <= memory.total_memory()
