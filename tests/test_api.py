"""What users import from `mereo` itself, frozen with its signatures: changing it is a visible act.

The names of the rooms are their `__all__`; mechanisms are covered by the catalogue and its conformance tests, networks
by the registry, options by tests/cli.
"""

import contextlib
import inspect
import pkgutil
import subprocess
from importlib import import_module

import pytest

import mereo


def signature(value):
    try:
        return str(inspect.signature(value)).replace("mereo.", "")
    except (TypeError, ValueError):
        return ""


def test_public_names_are_frozen(frozen):
    lines = [f"mereo.{name}{signature(getattr(mereo, name))}" for name in sorted(mereo.__all__)]
    frozen("api.txt", "\n".join(lines) + "\n")


def test_the_names_of_every_room_exist():
    for room in (m.name for m in pkgutil.iter_modules(mereo.__path__, "mereo.") if m.ispkg):
        module = import_module(room)
        names = getattr(module, "__all__", [])
        assert len(set(names)) == len(names), room
        assert [name for name in names if not hasattr(module, name)] == [], room


def test_a_room_with_the_name_of_a_public_name_is_callable():
    # Importing a package `mereo.record` would put it in place of the function.
    both = {m.name for m in pkgutil.iter_modules(mereo.__path__)} & set(mereo.__all__)
    assert all(callable(import_module(f"mereo.{name}")) for name in both), both


def test_every_public_name_is_there():
    assert set(mereo.__all__) <= set(dir(mereo))
    for name in mereo.__all__:
        assert getattr(mereo, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = mereo.nonsense


def loaded_by(python, statement):
    code = f"{statement}\nimport sys\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    return set(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_mereo_imports_nothing_heavy(python):
    assert not loaded_by(python, "import mereo") & {"torch", "numpy", "timm", "torchvision", "matplotlib", "rich"}


def test_using_the_models_imports_only_torch(python):
    heavy = {"timm", "torchvision", "matplotlib", "accelerate", "scipy", "pandas", "tensorboard", "onnx"}
    ours = loaded_by(python, "import mereo; mereo.create_model('mspcaps_tiny')") - loaded_by(python, "import torch")
    assert not ours & heavy


def needed_by(name):
    """The parameters of a function that have no default; none of a class."""
    value = getattr(mereo, name)
    parameters = [] if inspect.isclass(value) else inspect.signature(value).parameters.values()
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p for p in parameters if p.default is p.empty and p.kind not in variadic]


@pytest.mark.parametrize("wrong", [None, [1], 3])
@pytest.mark.parametrize("name", [name for name in sorted(mereo.__all__) if needed_by(name)])
def test_arguments_of_another_kind_are_refused_in_words(name, wrong):
    function, needed = getattr(mereo, name), needed_by(name)
    positional = [wrong for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD]
    with pytest.raises(mereo.UsageError) as caught, contextlib.ExitStack() as stack:
        given = function(*positional, **{p.name: wrong for p in needed if p.kind is p.KEYWORD_ONLY})
        if hasattr(given, "__enter__"):
            stack.enter_context(given)
    assert "\n" not in str(caught.value)
