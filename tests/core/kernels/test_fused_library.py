"""The compiled library: built where a compiler is, known when stale, right for every instruction set it holds."""

import ctypes
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import backends, fused
from mereo.core.kernels.streamed import StreamedPasses

needs_library = pytest.mark.skipif(fused.missing is not None, reason=str(fused.missing))


def test_a_checkout_with_a_compiler_has_the_library() -> None:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))) or sys.platform == "win32":
        pytest.skip("no C++ compiler is here")
    assert fused.missing is None, f"{fused.missing} (or: python hatch_build.py)"


def test_backends_says_what_each_method_lacks() -> None:
    found = backends()
    assert set(found) == {"triton", "fused", "streamed", "plain"}
    assert found["streamed"] == found["plain"] == "available"
    assert found["fused"] == (fused.missing or "available")
    if not torch.cuda.is_available():
        assert found["triton"] == "there is no CUDA device"


@pytest.mark.parametrize(
    ("note", "library", "message"),
    [
        (None, False, "is missing: mereo was installed without building it; install a C"),
        ("no C++ compiler was found", False, r"is missing: no C\+\+ compiler was found"),
        ("0123", True, "is older than its source"),
        ("digest", True, r"does not load .*_dynamic_routing.so"),
    ],
)
def test_a_library_that_cannot_be_used_says_why(
    note: str | None, library: bool, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "NOTE", tmp_path / "note.txt")
    monkeypatch.setattr(fused, "LIBRARY", tmp_path / "_dynamic_routing.so")
    if note is not None:
        fused.NOTE.write_text(fused.digest() if note == "digest" else note)
    if library:
        fused.LIBRARY.write_bytes(b"not a library")
    loaded, reason = fused._load()
    assert loaded is None and reason is not None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(reason)


@needs_library
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(3, 7, 3, 4, 5), (18, 20, 10, 8, 16), (5, 9, 70, 5, 4), (2, 40, 2, 9, 33)], ids=str)
def test_every_instruction_set(level: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(str(fused.LIBRARY))
    if level > library.mereo_isa():
        pytest.skip("this processor does not have it")
    for name, entry in (("_forward", "mereo_pass_forward"), ("_backward", "mereo_pass_backward")):
        known = getattr(fused, name)
        function = library[f"{entry}_{level}"]
        function.argtypes, function.restype = known.argtypes, None
        monkeypatch.setattr(fused, name, function)
    B, S, R, D, E = sizes
    torch.manual_seed(0)
    children, weight, agreed, grad = (torch.randn(x) for x in ((B, S, D), (R, S, D, E), (B, R, E), (B, R, E)))
    fast = fused.FusedPasses(children, weight, True, 0.5)
    exact = StreamedPasses(children.double(), weight.double(), None, True, 0.5, None)
    fast.start_backward()
    exact.start_backward()
    for given in (agreed, None):
        wide = None if given is None else given.double()
        close(fast.forward(given), exact.forward(wide))
        d_agreed, expected = fast.backward(given, grad), exact.backward(wide, grad.double())
        if d_agreed is not None and expected is not None:
            close(d_agreed, expected)
    close(fast.gradients()[0], exact.gradients()[0])
    close(fast.gradients()[1], exact.d_weight)


def close(x: Tensor, y: Tensor) -> None:
    assert (x - y).abs().max() <= 1e-5 * y.abs().max()
