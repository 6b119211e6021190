"""Capsule networks, capsule routing and attention as one thing: parts that agree on wholes.

    import mereo

    mereo.list_models("mspcaps*")
    model = mereo.create_model("mspcaps_tiny", num_classes=10, in_chans=3, img_size=32)
    with mereo.record(model) as trace:
        scores = model(images)
    trace["head.coupling"]          # couplings (batch, heads, receivers, senders)

    run = mereo.train(data="photos")                    # the commands as functions, with the same options
    mereo.predict(run, "holiday/*.jpg")
    mereo.evaluate(run)
    mereo.explain(run, "holiday/beach.jpg")

`import mereo` is quick: what a name needs is imported when the name is first used. The models are also registered with
timm, whichever of the two is imported first.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mereo._timm_hook import register_with_timm

if TYPE_CHECKING:
    from mereo.api import compare, embed, evaluate, explain, predict, search, train
    from mereo.api.estimator import ImageClassifier
    from mereo.core import Capsules, added_losses, get_mechanism, intervene, list_mechanisms, record
    from mereo.core.mechanism_checks import check_mechanism
    from mereo.core.recurrence import Recurrence, recurrence
    from mereo.errors import MereoError, UsageError
    from mereo.export import from_pretrained, push_to_hub, save_pretrained
    from mereo.mechanisms.attention import neighborhood_attention, tensor_attention
    from mereo.mechanisms.scan import lightning_attention, prefix_attention
    from mereo.mechanisms.slots import create_mechanism
    from mereo.models import convert, create_model, is_model, list_models, load, save_weights
    from mereo.surgery.dual_cross_attention import dual_cross_attention
    from mereo.surgery.evit import evit
    from mereo.surgery.insert import insert, remove
    from mereo.surgery.moh import moh
    from mereo.surgery.sea import sea
    from mereo.surgery.sigma_reparam import fold, sigma_reparam
    from mereo.surgery.sparsifiner import sparsifiner
    from mereo.surgery.tap import tap
    from mereo.surgery.watchable import watchable
    from mereo.training.attention_matches import sea_matches, sparsifiner_matches
    from mereo.training.distil import Distilled, distil
    from mereo.training.matching import Match

__version__ = "0.1.0"

_HOMES = {
    "Capsules": "mereo.core",
    "Distilled": "mereo.training.distil",
    "ImageClassifier": "mereo.api.estimator",
    "Match": "mereo.training.matching",
    "MereoError": "mereo.errors",
    "Recurrence": "mereo.core.recurrence",
    "UsageError": "mereo.errors",
    "compare": "mereo.api",
    "added_losses": "mereo.core",
    "check_mechanism": "mereo.core.mechanism_checks",
    "convert": "mereo.models",
    "create_mechanism": "mereo.mechanisms.slots",
    "create_model": "mereo.models",
    "distil": "mereo.training.distil",
    "dual_cross_attention": "mereo.surgery",
    "embed": "mereo.api",
    "evaluate": "mereo.api",
    "evit": "mereo.surgery",
    "fold": "mereo.surgery",
    "from_pretrained": "mereo.export",
    "get_mechanism": "mereo.catalogue",
    "insert": "mereo.surgery",
    "intervene": "mereo.mechanisms.attention.borrowed",
    "is_model": "mereo.models",
    "lightning_attention": "mereo.mechanisms.scan",
    "list_mechanisms": "mereo.catalogue",
    "list_models": "mereo.models",
    "load": "mereo.models",
    "moh": "mereo.surgery",
    "neighborhood_attention": "mereo.mechanisms.attention",
    "predict": "mereo.api",
    "prefix_attention": "mereo.mechanisms.scan",
    "push_to_hub": "mereo.export",
    "record": "mereo.mechanisms.attention.borrowed",
    "recurrence": "mereo.core.recurrence",
    "remove": "mereo.surgery",
    "save_pretrained": "mereo.export",
    "save_weights": "mereo.models",
    "sea": "mereo.surgery",
    "search": "mereo.api",
    "sea_matches": "mereo.training.attention_matches",
    "sigma_reparam": "mereo.surgery",
    "sparsifiner": "mereo.surgery",
    "sparsifiner_matches": "mereo.training.attention_matches",
    "tap": "mereo.surgery",
    "tensor_attention": "mereo.mechanisms.attention",
    "train": "mereo.api",
    "watchable": "mereo.surgery",
}

__all__ = [
    "Capsules",
    "Distilled",
    "ImageClassifier",
    "Match",
    "MereoError",
    "Recurrence",
    "UsageError",
    "added_losses",
    "check_mechanism",
    "compare",
    "convert",
    "create_mechanism",
    "create_model",
    "distil",
    "dual_cross_attention",
    "embed",
    "evaluate",
    "evit",
    "explain",
    "fold",
    "from_pretrained",
    "get_mechanism",
    "insert",
    "intervene",
    "is_model",
    "lightning_attention",
    "list_mechanisms",
    "list_models",
    "load",
    "moh",
    "neighborhood_attention",
    "predict",
    "prefix_attention",
    "push_to_hub",
    "record",
    "recurrence",
    "remove",
    "save_pretrained",
    "save_weights",
    "sea",
    "sea_matches",
    "search",
    "sigma_reparam",
    "sparsifiner",
    "sparsifiner_matches",
    "tap",
    "tensor_attention",
    "train",
    "watchable",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        setattr(sys.modules[__name__], name, value)
        return value
    if not name.startswith("_") and name.isidentifier() and find_spec(f"mereo.{name}") is not None:
        return import_module(f"mereo.{name}")
    raise AttributeError(f"module 'mereo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


register_with_timm()
