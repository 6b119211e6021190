"""Registers mereo's models with timm as soon as both are imported, without importing timm for those who do not use it.

timm has no entry point for other packages, and importing it takes longer than everything else here. So if timm is not
imported yet, a finder on `sys.meta_path` waits for timm's registry and registers right after it has been imported.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_REGISTRY = "timm.models"


class _AfterTimm(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def _register() -> None:
    from mereo.models import timm_entrypoints

    timm_entrypoints.register()


def register_with_timm() -> None:
    """Register now if timm is imported, otherwise when it is."""
    if _REGISTRY in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterTimm) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTimm())
