"""Text, dicts and None where tensors and networks are expected end in one kind of error, in every public function."""

import contextlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core.calls import checked, fits, wrong_argument

ROOMS = ["mereo", *(f"mereo.{m.name}" for m in pkgutil.iter_modules(mereo.__path__) if m.ispkg and m.name != "cli")]


def public_functions():
    found = {}
    for room in ROOMS:
        module = import_module(room)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isfunction(value):
                found[f"{room}.{name}"] = value
    return found


def required(function):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", ["nonsense", {"a": 1}, None], ids=["text", "a dict", "None"])
def test_every_public_function_names_an_argument_of_the_wrong_type(value, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    raw = {}
    for name, function in public_functions().items():
        try:
            result = function(**dict.fromkeys(required(function), value)) if required(function) else None
            if hasattr(result, "__enter__") and not isinstance(result, Tensor):
                with result:
                    pass
        except (mereo.UsageError, mereo.MereoError):
            pass
        except Exception as error:
            raw[name] = repr(error)
    assert raw == {}


@pytest.mark.parametrize("wrong", ["photo.png", {"image": 1}, None, [1, 2]])
def test_networks_and_layers_name_what_they_are_given(wrong):
    mechanism, _ = mereo.get_mechanism("multi_head").example()
    for module in (mereo.create_model("mspcaps_tiny"), mereo.create_model("resnet20"), mechanism):
        with pytest.raises(mereo.UsageError):
            module(wrong)


FITTING = [
    (torch.ones(2), Tensor), (3, int), (3, float), (2.5, float), (None, Tensor | None), ("a", str), (True, bool),
    ([1, 2], Sequence[int]), ((1, 2), tuple[int, int]), ((), tuple[str, ...]), ([torch.ones(1)], list[Tensor]),
    ({"a": 1}, Mapping[str, int]), (len, Callable[..., Any]), ("x", Any), (Path("a"), str | Path), ("a", str | Path),
    (nn.Linear(1, 1), nn.Module), ("a", Literal["a", "b"]),
]  # fmt: skip
NOT_FITTING = [
    ("a", Tensor), ({}, Tensor), (None, nn.Module), ("a", int), ("3", float), ("ab", Sequence[int]), (3, str),
    ("c", Literal["a", "b"]), (["a"], Sequence[int]), ("ab", tuple[int, ...]), ({}, str | Path),
    ("a", Mapping[str, int]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "hint"), FITTING)
def test_values_that_fit_an_annotation(value, hint):
    assert fits(value, hint)


@pytest.mark.parametrize(("value", "hint"), NOT_FITTING)
def test_values_that_do_not(value, hint):
    assert not fits(value, hint)


def add(x: Tensor, y: Tensor, *, times: int = 1) -> Tensor:
    return x + times * y.clone()


def test_the_error_names_function_argument_value_and_type():
    with pytest.raises(mereo.UsageError, match="add: y is 'a'; it must be a tensor"):
        checked(add)(torch.ones(1), "a")
    with pytest.raises(mereo.UsageError, match="add: x is a dict"):
        checked(add)({}, torch.ones(1))
    assert wrong_argument(add, (torch.ones(1), torch.ones(1)), {"times": 2}) is None


def test_other_errors_stay_what_they_are_and_results_too():
    with pytest.raises(RuntimeError, match="size of tensor"):
        checked(add)(torch.ones(2), torch.ones(3))
    with pytest.raises(TypeError, match="unexpected keyword"):
        checked(add)(torch.ones(2), torch.ones(2), time=3)
    assert checked(add)(torch.ones(2), torch.ones(2), times=2).tolist() == [3, 3]
    assert inspect.signature(checked(add)) == inspect.signature(add)


def test_a_context_manager_checks_when_it_is_made():
    with pytest.raises(mereo.UsageError, match="record: model is 'a'"), contextlib.ExitStack() as stack:
        stack.enter_context(mereo.record("a"))


def test_checked_functions_compile_without_a_break():
    compiled = torch.compile(
        lambda x: mereo.core.squash(x) + mereo.core.lengths(x).sum(), fullgraph=True, backend="eager"
    )
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(compiled(x), mereo.core.squash(x) + mereo.core.lengths(x).sum())


@pytest.mark.parametrize("name", ["capsnet", "efficient_capsnet", "matrix_capsnet_68k"])
def test_networks_can_still_be_pickled(name):
    model = mereo.create_model(name)
    assert pickle.loads(pickle.dumps(model)).state_dict().keys() == model.state_dict().keys()
