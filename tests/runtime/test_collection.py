"""Long imports are not searched for garbage."""

import gc
import subprocess
import sys

import pytest

from mereo.runtime.collection import uncollected


@pytest.fixture(autouse=True)
def collecting():
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_off_inside_a_block_and_then_as_before(enabled):
    gc.enable() if enabled else gc.disable()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_errors_leave_collection_as_it_was():
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


@pytest.mark.long
def test_a_command_ends_without_searching_what_it_imported(tmp_path):
    script = (
        "import gc, sys, mereo.__main__ as m; sys.argv = ['mereo', 'predict', 'none.png']\n"
        "m.main(); print(gc.get_freeze_count() > len(sys.modules), 'mereo.core.kernels.triton_kernels' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert printed.split() == ["True", "False"]
