"""Networks that were made elsewhere, of timm, torchvision or the user's own code, in place of a name.

Each is a row of the catalogue named "own:CLASS" as long as the network exists, so that plans, run folders and files of
weights treat it like any other.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mereo.core.modes import modes_kept
from mereo.core.shapes import image_size
from mereo.errors import UsageError, first_line
from mereo.escape import cut
from mereo.models.plain.entry import PlainEntry, usual_rate
from mereo.models.plain.network import PlainNetwork, put, stages
from mereo.models.registry import IMAGENET, OWN, outline
from mereo.surgery.places import stated_shape

SIDE = 224
"""Height and width of images for a network that states none."""
OTHER_SIDES = (32, 64, 28, 96, 128, 256, 384)
"""Sides that are tried where a network does not run at `SIDE`, such as one with a linear layer over all places."""
_COARSEST = 4
"""Pixels from one score of a map to the next at most; coarser maps are features."""
_REMEDY = "set its pretrained_cfg, such as {'input_size': (3, 64, 64), 'mean': (0.5,) * 3, 'std': (0.25,) * 3}"


def copy_of(network: nn.Module) -> nn.Module:
    """A copy; while tensors are made on the meta device, a copy there, without values."""
    memo: dict[int, Any] = {}
    if torch.empty(0).is_meta:
        for tensor in (*network.parameters(), *network.buffers()):
            empty = torch.empty_like(tensor, device="meta")
            memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return deepcopy(network, memo)


class OwnNetwork(PlainNetwork):
    """Classify images, or their pixels, with a copy of a network that was given.

    A subclass for each network is made by `register_own`.

    Args:
        num_classes: another number than the network has renews its last layer.
        in_chans, img_size: of the images, as the network takes them.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes), or with `output_kind` "maps"
        (batch, num_classes, height, width), to which coarser ones are interpolated.

    Attributes:
        network: the network.
        original: the network that is copied, while it exists.
    """

    library_name = "own"
    channels_last = False
    original: ClassVar[ref[nn.Module]]
    made_for: ClassVar[tuple[int, int, int]]
    outputs: ClassVar[int]

    def __init__(self, num_classes: int = 0, in_chans: int = 3, img_size: int | tuple[int, int] = SIDE) -> None:
        super(PlainNetwork, self).__init__()
        original, channels, size = self.original(), self.made_for[0], image_size(img_size)
        if original is None:
            raise _gone(self.network_name)
        if in_chans != channels:
            raise UsageError(f"in_chans is {in_chans}, and the {self.network_name} that was given takes {channels}.")
        if self.fixed_input_size and size != self.made_for[1:]:
            height, width = self.made_for[1:]
            raise UsageError(
                f"img_size is {size[0]}x{size[1]}, and the {self.network_name} that was given takes images of {height}x"
                f"{width} (height, width); give img_size=({height}, {width})."
            )
        self.image_shape, self.num_classes = (channels, *size), self.outputs
        self.network, self.feature_info = copy_of(original).train(), stages(original)
        self.num_features = _width(self.get_classifier())
        if num_classes != self.outputs:
            self.num_classes = num_classes
            self._renew_classifier()

    def forward(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self._in_full(_answer(self.network(images)), images)

    def _in_full(self, scores: Tensor, images: Tensor) -> Tensor:
        size = images.shape[-2:]
        if self.output_kind != "maps" or scores.shape[-2:] == size:
            return scores
        return F.interpolate(scores, size, mode="bilinear", align_corners=False)

    def forward_features(self, images: Tensor) -> Tensor:
        """What enters the classifier."""
        entered: list[Tensor] = []
        classifier = self.get_classifier()
        handle = classifier.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        try:
            self(images)
        finally:
            handle.remove()
        return entered[-1]

    def forward_head(self, features: Any, pre_logits: bool = False) -> Tensor:
        if not pre_logits and len(self.classifier_parts) > 1:
            raise UsageError(
                f"the {self.network_name} that was given adds the scores of {len(self.classifier_parts)} heads, which"
                " read features of their own; call the network itself."
            )
        if not pre_logits:
            return self.get_classifier()(features)
        return features.mean((2, 3)) if self.output_kind == "maps" else features.flatten(1)

    def _renew_classifier(self) -> None:
        names = [name.removeprefix("network.") for name in self.classifier_parts]
        if hasattr(self.network, "reset_classifier"):
            self.network.reset_classifier(self.num_classes)
            return
        old = [self.network.get_submodule(name) for name in names]
        if self.num_classes and all(_makes(each, self.outputs) for each in old):
            before = _count_without_values(self.network, self.image_shape)  # None: its layers read values
            _renew(self.network, names, self.num_classes)
            if _count_without_values(self.network, self.image_shape) == (before and self.num_classes):
                return
        raise UsageError(
            f"num_classes is {self.num_classes}, and the {self.network_name} that was given has {self.outputs} by a"
            f" {type(old[-1]).__name__} {names[-1]!r}; give a network with {self.num_classes}, or where its outputs are"
            f" features torch.nn.Sequential(network, torch.nn.Linear({self.outputs}, {self.num_classes}))."
        )

    @classmethod
    def published_loader(cls, weights: str) -> Any:
        raise UsageError(f"weights is {weights!r}, and model is a network with weights of its own; leave it out.")


def _gone(name: str) -> UsageError:
    return UsageError(
        f"the network is {OWN}:{name}, which was given in Python and is not there; give it again: mereo.load(path,"
        " network=...)."
    )


def _width(classifier: nn.Module) -> int:
    """Features that enter a classifier."""
    named = ("in_features", "in_channels", "num_features")
    return int(next((getattr(classifier, name) for name in named if hasattr(classifier, name)), 0))


def _makes(layer: nn.Module, outputs: int) -> bool:
    """Whether a layer has so many outputs, and can be made again with others."""
    if isinstance(layer, nn.Linear):
        return layer.out_features == outputs
    return isinstance(layer, nn.Conv2d) and layer.out_channels == outputs and layer.groups == 1


def _renew(network: nn.Module, names: Sequence[str], outputs: int) -> None:
    """Give layers of a network another number of outputs, in place; its `config` of transformers then states it."""
    for name in names:
        old: Any = network.get_submodule(name)
        like = {"bias": old.bias is not None, "device": old.weight.device, "dtype": old.weight.dtype}
        if isinstance(old, nn.Linear):
            put(network, name, nn.Linear(old.in_features, outputs, **like))
        else:
            like |= {each: getattr(old, each) for each in ("stride", "padding", "dilation", "padding_mode")}
            put(network, name, nn.Conv2d(old.in_channels, outputs, old.kernel_size, **like))
    config: Any = getattr(network, "config", None)
    if hasattr(config, "num_labels"):
        config.num_labels = outputs


def _classifiers(network: nn.Module, outputs: int, shape: tuple[int, int, int]) -> tuple[str, ...]:
    """The names of the layers with one output for each class that decide how many classes there are.

    It is the last such layer, except in auxiliary heads, or all of them whose names say so where their scores are
    added; without any, the last layer with weights.
    """
    stated: Any = getattr(network, "pretrained_cfg", None)
    if isinstance(stated, Mapping) and isinstance(stated.get("classifier"), str):
        return (str(stated["classifier"]),)
    layers = [name for name, each in network.named_modules() if next(each.parameters(recurse=False), None) is not None]
    fitting = [name for name in layers if _makes(network.get_submodule(name), outputs)]
    fitting = [name for name in fitting if not name.startswith("aux")] or fitting
    last, every = fitting[-1:] or layers[-1:], [name for name in fitting if "classifier" in name or "head" in name]
    if last != every and len(every) > 1 and not _decide(network, last, outputs + 1, shape):
        return tuple(every if _decide(network, every, outputs + 1, shape) else last)
    return tuple(last)


def _count_without_values(network: nn.Module, shape: tuple[int, int, int]) -> int | None:
    """The number of classes; None for a network that does not run without values."""
    try:
        return int(_outputs(network, shape).shape[1])
    except Exception:  # a network of one's own may raise anything
        return None


def _decide(network: nn.Module, names: Sequence[str], outputs: int, shape: tuple[int, int, int]) -> bool:
    """Whether a network has so many outputs once these layers have."""
    with torch.device("meta"):
        trial = copy_of(network)
        _renew(trial, names, outputs)
    return _count_without_values(trial, shape) == outputs


def _stated(network: nn.Module) -> dict[str, Any]:
    """What a network states about its images, under timm's names."""
    stated: Any = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None) or {}
    if hasattr(stated, "to_dict"):
        stated = stated.to_dict()
    if stated or not type(network).__module__.startswith("torchvision."):
        return dict(stated)
    return {**IMAGENET, "interpolation": "bilinear", "crop_pct": 0.875}


def _answer(outputs: Any) -> Any:
    """What a network answers: the first of several; of a table "logits", as in transformers, or torchvision's "out"."""
    if isinstance(outputs, Mapping):
        outputs = next((outputs[name] for name in ("logits", "out") if name in outputs), outputs)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _outputs(network: nn.Module, shape: tuple[int, int, int]) -> Any:
    """What a network gives for one image without values."""
    with torch.device("meta"), torch.no_grad():
        return _answer(copy_of(network).eval()(torch.empty(1, *shape)))


def _size_found(network: nn.Module, channels: int) -> tuple[int, int]:
    """The first of the usual sizes of images at which a network that states none runs; else the first one."""
    for side in (SIDE, *OTHER_SIDES):
        try:
            _outputs(network, (channels, side, side))
        except Exception:  # a network of one's own may raise anything
            continue
        return side, side
    return SIDE, SIDE


def _kind_of_outputs(network: nn.Module, shape: tuple[int, int, int]) -> tuple[str, int]:
    """The kind of outputs and the number of classes; UsageError for other outputs, or a network that does not run."""
    name = type(network).__name__
    try:
        try:
            outputs = _outputs(network, shape)
        except (NotImplementedError, RuntimeError):  # a layer that reads values cannot run without them
            like = next(network.parameters())
            with modes_kept(network), torch.no_grad():
                outputs = _answer(network.eval()(torch.zeros(1, *shape, device=like.device, dtype=like.dtype)))
    except Exception as error:
        raise UsageError(
            f"model is a {name}, which does not run on images (batch, channels, height, width) of {(1, *shape)}"
            f" ({type(error).__name__}: {cut(first_line(error), 200)}); {_REMEDY}."
        ) from error
    sizes = tuple(outputs.shape) if isinstance(outputs, Tensor) else ()
    if len(sizes) == 2:
        return "scores", sizes[1]
    if len(sizes) == 4 and all(_COARSEST * of_map >= side for of_map, side in zip(sizes[2:], shape[1:], strict=True)):
        return "maps", sizes[1]
    raise UsageError(
        f"model is a {name}, which gives {sizes or type(outputs).__name__}; it must give scores (batch, classes), or of"
        f" pixels (batch, classes, height, width) with at most {_COARSEST} pixels from one to the next."
    )


def _takes_one_size(network: nn.Module, shape: tuple[int, int, int]) -> bool:
    try:
        _outputs(network, (shape[0], 2 * shape[1], 2 * shape[2]))
    except Exception:
        return True
    return False


OWN_ENTRIES: dict[str, PlainEntry] = {}


def own_entry(name: str) -> PlainEntry:
    """The row of a network that was given; UsageError if it no longer exists."""
    entry = OWN_ENTRIES.get(name)
    if entry is None or entry.module.original() is None:  # type: ignore[attr-defined]
        raise _gone(name)
    return entry


def _free_name(network: nn.Module) -> str:
    kind, number = type(network).__name__, 1
    while True:
        name = kind if number == 1 else f"{kind}-{number}"
        entry = OWN_ENTRIES.get(name)
        if entry is None or entry.module.original() in (None, network):  # type: ignore[attr-defined]
            return name
        number += 1


def register_own(network: nn.Module, size: tuple[int, int] | None = None, name: str | None = None) -> PlainEntry:
    """The row of the catalogue of a network that was given.

    Args:
        network: gives scores (batch, classes), or (batch, classes, height, width), for images (batch, channels,
            height, width).
        size: height and width of the images, unless the network states them.
        name: in the catalogue; the name of the class by default.
    """
    if next(network.parameters(), None) is None:
        raise UsageError(f"model is a {type(network).__name__} without parameters; give a network.")
    stated, name = _stated(network), name or _free_name(network)
    channels, own_size = stated_shape(network)
    shape = (channels, *(own_size or size or _size_found(network, channels)))
    kind, outputs = _kind_of_outputs(network, shape)
    classifiers = tuple(f"network.{each}" for each in _classifiers(network, outputs, shape))
    first = next((each for each, module in network.named_modules() if isinstance(module, nn.Conv2d)), "")
    module = type(
        f"Own{type(network).__name__}",
        (OwnNetwork,),
        {
            "__module__": OwnNetwork.__module__, "__doc__": OwnNetwork.__doc__, "network_name": name,
            "original": ref(network), "made_for": shape, "outputs": outputs, "first_conv": f"network.{first}",
            "usual_rate": usual_rate(network), "fixed_input_size": _takes_one_size(network, shape),
            "classifier": classifiers[-1], "classifier_parts": classifiers, "output_kind": kind,
        },
    )  # fmt: skip
    parameters = sum(parameter.numel() for parameter in network.parameters())
    sides = shape[1] if shape[1] == shape[2] else shape[1:]
    arguments = {"num_classes": outputs, "in_chans": shape[0], "img_size": sides}
    mean, std = (tuple(stated.get(key) or (value,) * shape[0]) for key, value in (("mean", 0.0), ("std", 1.0)))
    OWN_ENTRIES[name] = PlainEntry(
        f"{OWN}:{name}", module, f"A {type(network).__name__} that was given in Python.", arguments, "", parameters,
        f"{OWN}:{name}", mean=mean, std=std, interpolation=stated.get("interpolation") or "bilinear",
        crop_pct=stated.get("crop_pct") or 1.0, tiny={}, size=shape[1:],
    )  # fmt: skip
    return OWN_ENTRIES[name]


def has_preprocessing(network: nn.Module) -> bool:
    """Whether the mean and standard deviation of the images of a network are known."""
    return bool(_stated(network).get("mean"))


def as_vision_model(network: nn.Module, size: tuple[int, int] | None = None) -> OwnNetwork:
    """A network that was given, under the protocol of `VisionModel`: itself, not a copy.

    Args:
        network, size: see `register_own`.
    """
    entry = register_own(network, size)
    model = outline(entry.name)
    assert isinstance(model, OwnNetwork)
    model.network = network
    model.training = network.training
    names: Any = getattr(network, "class_names", ()) or getattr(getattr(network, "config", None), "id2label", {})
    names = [*names.values()] if isinstance(names, Mapping) else names
    model.class_names = tuple(map(str, names)) if len(names) == model.num_classes else ()
    return model
