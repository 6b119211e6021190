"""The public names, frozen: changing them is a visible act."""

import inspect
import subprocess
from importlib import import_module

import pytest

import mereo

ROOMS = [
    "core", "routing", "attention", "capsules", "models", "data", "explain", "measure", "bench", "export",
    "generative",
]  # fmt: skip


def signature(value):
    try:
        return str(inspect.signature(value)).replace("mereo.", "")
    except (TypeError, ValueError):
        return ""


def test_public_names_are_frozen(frozen):
    lines = [f"mereo.{name}{signature(getattr(mereo, name))}" for name in sorted(mereo.__all__)]
    for room in ROOMS:
        module = import_module(f"mereo.{room}")
        lines += [f"mereo.{room}.{name}" for name in sorted(module.__all__)]
    frozen("api.txt", "\n".join(lines) + "\n")


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


def test_using_the_models_imports_torch_alone(python):
    heavy = {"timm", "torchvision", "matplotlib", "accelerate", "scipy", "pandas", "tensorboard", "onnx"}
    assert not loaded_by(python, "import mereo; mereo.create_model('mspcaps_tiny')") & heavy
