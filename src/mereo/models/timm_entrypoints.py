"""mereo's models in timm's registry: `timm.create_model("mspcaps_tiny")` after `import mereo`.

An entry of timm is never replaced. Where timm has a model of the same name, `mereo.create_model(name)` makes mereo's,
`timm.create_model(name)` timm's, and `timm.create_model("mereo_" + name)` mereo's.
"""

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from mereo.models.base import VisionModel
from mereo.models.entry import ModelEntry
from mereo.models.factory import create_model
from mereo.models.feature_maps import FeatureMaps
from mereo.models.pretrained import default_tag, description_of, pretrained_path, tags_of
from mereo.models.registry import MODELS, build

default_cfgs: dict[str, Any] = {}

PREFIX = "mereo_"
"""Before the name of a model of mereo where timm has one of the same name."""
SAVED = ("local-dir", "hf-hub")
"""timm's names of the sources of networks with their weights: a folder, a repository of the hub."""
PREPROCESSING = ("mean", "std", "crop_pct", "crop_mode", "interpolation", "license")


def timm_name(name: str) -> str:
    """The name of a model of mereo in timm: its own, or "mereo_" and its name if that is a model of timm's."""
    from timm.models import is_model, model_entrypoint

    return f"{PREFIX}{name}" if is_model(name) and model_entrypoint(name).__module__ != __name__ else name


def _as_saved(model: VisionModel, saved: dict[str, Any], pretrained: bool) -> VisionModel:
    """A model with the preprocessing, labels and, if wanted, weights that timm read at `local-dir:` or `hf-hub:`."""
    for name in PREPROCESSING:
        value = saved.get(name)
        if value is not None and not (name in ("mean", "std") and len(value) != model.image_shape[0]):
            model.pretrained_cfg[name] = tuple(value) if isinstance(value, list) else value
    labels = saved.get("label_names") or ()
    if len(labels) == model.num_classes:
        model.class_names = tuple(labels)
    if pretrained:
        from timm.models import load_pretrained

        load_pretrained(model, saved, num_classes=model.num_classes, in_chans=model.image_shape[0])
    return model


def _entrypoint(entry: ModelEntry, known_as: str) -> Callable[..., nn.Module]:
    def create(
        pretrained: bool | str = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: Any = None, **kwargs: Any
    ) -> nn.Module:
        for timms_own in ("cache_dir", "pretrained_model_args"):
            kwargs.pop(timms_own, None)
        saved = pretrained_cfg if isinstance(pretrained_cfg, dict) and pretrained_cfg.get("source") in SAVED else None
        if saved is not None:
            features_only, out_indices = kwargs.pop("features_only", False), kwargs.pop("out_indices", None)
            model = _as_saved(build(entry.name, **kwargs), saved, bool(pretrained))
            return FeatureMaps(model, out_indices) if features_only else model
        # timm passes on the part of "mspcaps_tiny.mnist" after the dot.
        tag = (
            pretrained_cfg if pretrained is True and isinstance(pretrained_cfg, str) and pretrained_cfg else pretrained
        )
        return create_model(entry.name, tag, **kwargs)

    create.__name__ = create.__qualname__ = known_as
    create.__module__ = __name__
    create.__doc__ = entry.summary
    return create


def _configurations(entry: ModelEntry, known_as: str) -> dict[str, dict[str, Any]]:
    """timm's configurations of a network: one for each of its weights, the default first, or one without weights."""
    own = {key: value for key, value in entry.pretrained_cfg(entry.defaults).items() if key != "architecture"}
    default = default_tag(entry.name)
    configurations = {}
    for tag in sorted(tags_of(entry.name), key=lambda tag: tag != default):
        name = f"{entry.name}.{tag}"
        saved = description_of(name)["pretrained_cfg"]
        values = {key: tuple(v) if isinstance(v := saved[key], list) else v for key in own}
        values |= {"license": saved["license"], "file": str(pretrained_path(name))}
        configurations[f"{known_as}.{tag}"] = values
    return configurations or {known_as: own}


def register() -> None:
    """Give timm an entry point and a configuration for each of mereo's models that it has none for."""
    from timm.models import generate_default_cfgs, is_model, register_model

    module = sys.modules[__name__]
    classifiers = (e for e in MODELS.values() if (e.module.input_kind, e.module.output_kind) == ("images", "scores"))
    new = {known_as: entry for entry in classifiers if not is_model(known_as := timm_name(entry.name))}
    for known_as, entry in new.items():
        default_cfgs.update(generate_default_cfgs(_configurations(entry, known_as)))
        function = _entrypoint(entry, known_as)
        setattr(module, known_as, function)
        register_model(function)
