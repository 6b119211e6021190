"""mereo's models as timm knows models: `timm.create_model("mspcaps_tiny")` after `import mereo`."""

import sys
from collections.abc import Callable
from typing import Any

from mereo.models.base import CapsuleClassifier
from mereo.models.pretrained import default_tag, description_of, pretrained_path, tags_of
from mereo.models.registry import MODELS, ModelEntry, create_model

default_cfgs: dict[str, Any] = {}

SAVED = ("local-dir", "hf-hub")
"""What timm calls the sources of networks that come with their weights: a folder, a repository of the hub."""
PREPROCESSING = ("mean", "std", "crop_pct", "crop_mode", "interpolation", "license")


def _as_saved(model: CapsuleClassifier, saved: dict[str, Any], pretrained: bool) -> CapsuleClassifier:
    """The preprocessing, the labels and, where wanted, the weights of what timm found at `local-dir:` or `hf-hub:`."""
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


def _entrypoint(entry: ModelEntry) -> Callable[..., CapsuleClassifier]:
    def create(
        pretrained: bool | str = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: Any = None, **kwargs: Any
    ) -> CapsuleClassifier:
        for timms_own in ("cache_dir", "pretrained_model_args"):
            kwargs.pop(timms_own, None)
        saved = pretrained_cfg if isinstance(pretrained_cfg, dict) and pretrained_cfg.get("source") in SAVED else None
        if saved is not None:
            return _as_saved(create_model(entry.name, **kwargs), saved, bool(pretrained))
        # Of "mspcaps_tiny.mnist" timm hands on what follows the dot.
        tag = (
            pretrained_cfg if pretrained is True and isinstance(pretrained_cfg, str) and pretrained_cfg else pretrained
        )
        return create_model(entry.name, tag, **kwargs)

    create.__name__ = create.__qualname__ = entry.name
    create.__module__ = __name__
    create.__doc__ = entry.summary
    return create


def _configurations(entry: ModelEntry) -> dict[str, dict[str, Any]]:
    """timm's configurations of a network: one for each of its weights, the default first, or one without weights."""
    own = {key: value for key, value in entry.pretrained_cfg(entry.defaults).items() if key != "architecture"}
    default = default_tag(entry.name)
    names = [f"{entry.name}.{tag}" for tag in sorted(tags_of(entry.name), key=lambda tag: tag != default)]
    found = {}
    for name in names:
        kept = description_of(name)["pretrained_cfg"]
        found[name] = {key: tuple(v) if isinstance(v := kept[key], list) else v for key in own}
        found[name]["license"] = kept["license"]
        found[name]["file"] = str(pretrained_path(name))
    return found or {entry.name: own}


def register() -> None:
    """Give timm an entry point and a configuration for each of mereo's models; a name that timm has stays timm's."""
    from timm.models import generate_default_cfgs, is_model, register_model

    module = sys.modules[__name__]
    new = {name: entry for name, entry in MODELS.items() if not is_model(name)}
    cfgs = {name: cfg for entry in new.values() for name, cfg in _configurations(entry).items()}
    default_cfgs.update(generate_default_cfgs(cfgs))
    for name, entry in new.items():
        function = _entrypoint(entry)
        setattr(module, name, function)
        register_model(function)
