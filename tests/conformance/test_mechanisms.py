"""Every mechanism of the catalogue, held to exactly what it promises; `mereo.core.mechanism_checks` has the checks."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mereo.catalogue import FAMILIES, MECHANISMS, Mechanism
from mereo.core import record
from mereo.core.mechanism_checks import CHECKS, Check, check_compiled
from reconstructions import check_reconstruction

TESTS = Path(__file__).parents[1]
ENTRIES = sorted(MECHANISMS.items())
COMPILED = {
    entry.family: entry
    for _, entry in reversed(ENTRIES)
    if entry.family in ("routing", "dense attention", "local attention", "scan")
    and CHECKS["compiles_to_one_graph"].applies(entry)
}
"""One of each of these families, since the default backend takes some twenty seconds for a mechanism."""
SLOW = ("compiles_to_one_graph", "exports_with_a_free_batch_size")
every_mechanism = pytest.mark.parametrize("entry", [pytest.param(entry, id=name) for name, entry in ENTRIES])
every_module = pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=name) for name, entry in ENTRIES if isinstance(entry.target, type)]
)


@pytest.mark.parametrize(
    ("check", "entry"),
    [
        pytest.param(check, entry, id=f"{check.name}-{name}", marks=[pytest.mark.long] * (check.name in SLOW))
        for check in CHECKS.values()
        for name, entry in ENTRIES
        if check.applies(entry)
    ],
)
def test_promise(check: Check, entry: Mechanism) -> None:
    check.run(entry)


@pytest.mark.long
@pytest.mark.parametrize("entry", COMPILED.values(), ids=lambda entry: entry.name)
def test_compiles_with_the_default_backend(entry: Mechanism) -> None:
    check_compiled(entry, "inductor", tolerance=1e-3)  # it sums in another order


@every_module
def test_operations_are_counted_alike_with_gradients_and_without(entry: Mechanism) -> None:
    # What computes faster without gradients must run its layers while it is recorded, as counting does.
    module, inputs = entry.example()
    module.eval().requires_grad_(False)

    def counted(gradients: bool) -> int:
        with record(module), torch.set_grad_enabled(gradients), FlopCounterMode(display=False) as counter:
            module(*inputs)
        return counter.get_total_flops()

    assert counted(False) == counted(True)


class Quantised(Tensor):
    """A weight that only its linear layer can use, as weights are that another library made smaller."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return [], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Tensor:
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if function is not F.linear and function.__name__ not in ("__get__", "dim", "numel", "size", "__len__"):
            raise NotImplementedError(f"{function.__name__} of a quantised weight")
        plain = [each.as_subclass(Tensor) if isinstance(each, Quantised) else each for each in given]
        return function(*plain, **(named or {}))


@every_module
@torch.no_grad()
def test_layers_with_weights_of_another_library_are_called(entry: Mechanism) -> None:
    module, inputs = entry.example()
    expected = module.eval()(*inputs)
    for layer in [layer for layer in module.modules() if type(layer) is nn.Linear]:
        layer._parameters["weight"] = layer.weight.detach().as_subclass(Quantised)  # type: ignore[assignment]
    torch.testing.assert_close(module(*inputs), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@every_mechanism
def test_the_file_lies_in_the_room_of_its_family(entry: Mechanism) -> None:
    assert entry.target.__module__ == f"mereo.{entry.room}.{entry.name}"
    room = entry.room.partition(".")[0]
    own = list((TESTS / room).rglob(f"test_{entry.name}.py"))
    assert own and "def test_" in own[0].read_text(), f"tests/{room}/test_{entry.name}.py is missing or empty"


@every_mechanism
def test_a_docstring_without_its_papers_equations_is_marked_as_a_reconstruction(entry: Mechanism) -> None:
    check_reconstruction(entry.target, entry.reconstruction)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_room_that_the_catalogue_imports(family: str) -> None:
    room = f"mereo.{FAMILIES[family]}"
    assert importlib.import_module(room).__doc__
    assert f"import {room}" in (TESTS.parent / "src" / "mereo" / "catalogue.py").read_text()
