"""mereo's models as timm knows models: `timm.create_model("mspcaps_tiny")` after `import mereo`."""

import sys
from collections.abc import Callable
from typing import Any

from mereo.models.base import CapsuleClassifier
from mereo.models.registry import MODELS, ModelEntry, create_model

default_cfgs: dict[str, Any] = {}


def _entrypoint(entry: ModelEntry) -> Callable[..., CapsuleClassifier]:
    def create(
        pretrained: bool = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: Any = None, **kwargs: Any
    ) -> CapsuleClassifier:
        kwargs.pop("cache_dir", None)
        return create_model(entry.name, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = entry.name
    create.__module__ = __name__
    create.__doc__ = entry.summary
    return create


def register() -> None:
    """Give timm an entry point and a configuration for each of mereo's models; a name that timm has stays timm's."""
    from timm.models import generate_default_cfgs, is_model, register_model

    module = sys.modules[__name__]
    new = {name: entry for name, entry in MODELS.items() if not is_model(name)}
    cfgs = {}
    for name, entry in new.items():
        cfg = entry.pretrained_cfg(entry.defaults)
        cfgs[name] = {k: v for k, v in cfg.items() if k != "architecture"}
    default_cfgs.update(generate_default_cfgs(cfgs))
    for name, entry in new.items():
        function = _entrypoint(entry)
        setattr(module, name, function)
        register_model(function)
