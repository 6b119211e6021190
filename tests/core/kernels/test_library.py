"""The compiled library: built where a compiler is, known when stale, right for every instruction set it holds."""

import ctypes
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import backends, fused, library, votes
from mereo.core.kernels.streamed import StreamedPasses

ROOT = Path(__file__).parents[3]
needs_library = pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
every_level = pytest.mark.parametrize("level", [0, 1, 2])
every_size = pytest.mark.parametrize(
    "sizes", [(3, 7, 3, 4, 5), (18, 20, 10, 8, 16), (5, 9, 70, 5, 4), (2, 40, 2, 9, 33), (17, 3, 2, 13, 8)], ids=str
)


def test_a_checkout_with_a_compiler_has_the_library() -> None:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))) or sys.platform == "win32":
        pytest.skip("no C++ compiler is here")
    assert library.missing is None, f"{library.missing} (or: python hatch_build.py)"


@pytest.mark.parametrize("fails", [False, True])
def test_the_library_stays_while_it_is_compiled_again(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    old = tmp_path / "_library.so"
    old.write_bytes(b"old")

    def compile_library() -> None:
        assert old.read_bytes() == b"old"
        if fails:
            raise hook.BuildError("no compiler")
        old.write_bytes(b"new")

    for name, value in {"LIBRARY": old, "NOTE": tmp_path / "_library.txt", "compile_library": compile_library}.items():
        monkeypatch.setattr(hook, name, value)
    assert hook.build() != fails
    assert (tmp_path / "_library.txt").read_text().strip() == ("no compiler" if fails else library.digest())
    assert not old.exists() if fails else old.read_bytes() == b"new"


def test_backends_reports_what_each_method_lacks() -> None:
    found = backends()
    assert set(found) == {"triton", "fused", "streamed", "plain"}
    assert found["streamed"] == found["plain"] == "available"
    assert found["fused"] == (library.missing or "available")
    if not torch.cuda.is_available():
        assert found["triton"] == "there is no CUDA device"


@pytest.mark.parametrize(
    ("note", "there", "message"),
    [
        (None, False, "is missing: mereo was installed without building it; install a C"),
        ("no C++ compiler was found", False, r"is missing: no C\+\+ compiler was found"),
        ("0123", True, "is older than its source"),
        ("digest", True, r"does not load .*_library.so"),
    ],
)
def test_a_library_that_cannot_be_used_is_reported_with_the_reason(
    note: str | None, there: bool, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "NOTE", tmp_path / "note.txt")
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "_library.so")
    if note is not None:
        library.NOTE.write_text(library.digest() if note == "digest" else note)
    if there:
        library.LIBRARY.write_bytes(b"not a library")
    loaded, reason = library._load()
    assert loaded is None and reason is not None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(reason)


def at_level(monkeypatch: pytest.MonkeyPatch, holder: Any, name: Any, level: int) -> None:
    """Put another instruction set's function where the best one is kept: an attribute, or an entry of a dictionary."""
    if level > ctypes.CDLL(str(library.LIBRARY)).mereo_isa():
        pytest.skip("this processor does not have it")
    known = holder[name] if isinstance(holder, dict) else getattr(holder, name)
    other = known.at_level(level)
    if isinstance(holder, dict):
        monkeypatch.setitem(holder, name, other)
    else:
        monkeypatch.setattr(holder, name, other)


@needs_library
@every_level
@every_size
def test_passes_in_every_instruction_set(level: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    at_level(monkeypatch, fused, "_pass", level)
    at_level(monkeypatch, fused, "_pass_gradients", level)
    B, S, R, D, E = sizes
    children, weight, agreed, grad = (torch.randn(x) for x in ((B, S, D), (R, S, D, E), (B, R, E), (B, R, E)))
    fast = fused.FusedPasses(children, weight, True, 0.5)
    exact = StreamedPasses(children.double(), weight.double(), None, True, 0.5, None)
    fast.start_backward()
    exact.start_backward()
    for given in (agreed, 0.3 * agreed, None):
        wide = None if given is None else given.double()
        assert_near(fast.forward(given), exact.forward(wide))
        d_agreed, expected = fast.backward(given, grad), exact.backward(wide, grad.double())
        assert (d_agreed is None) == (expected is None)
        if d_agreed is not None and expected is not None:
            assert_near(d_agreed, expected)
    assert_near(fast.gradients()[0], exact.gradients()[0])
    assert_near(fast.gradients()[1], exact.d_weight)


@needs_library
@every_level
@every_size
@pytest.mark.parametrize("wanted", votes.NAMES)
def test_vote_form_in_every_instruction_set(
    level: int, sizes: tuple[int, ...], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_level(monkeypatch, votes, "_vote_form", level)
    B, S, R, D, E = sizes
    shapes = {"c": (B, R, S), "u": (B, S, D), "W": (R, S, D, E), "v": (B, R, E)}
    given = [None if name == wanted else torch.randn(shape) for name, shape in shapes.items()]
    exact = votes._derivative(wanted, *(None if x is None else x.double() for x in given), False, 3)
    assert_near(votes._derivative(wanted, *given, False, 3), exact)


def assert_near(x: Tensor, y: Tensor) -> None:
    assert (x - y).abs().max() <= 1e-5 * y.abs().max()
