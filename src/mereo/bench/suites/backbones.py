"""Vision backbones compared with timm's classes of the same presets, with the same weights.

Weights are random, and so are scales and statistics that start as constants, so that every part of a network counts in
the comparison of outputs. Ours are converted from timm's by `mereo.convert`. Gradients are compared one by one in
float64, since with batch norms many gradients are no larger than the rounding of float32. A preset that timm does not
have, or any preset if timm is not installed, is compared with itself: fused and compiled.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.bench.cases import compiled
from mereo.bench.correctness import Outcome, compare
from mereo.bench.counting import network_work
from mereo.bench.results import Measurement, Run
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.bench.suites.networks import images_and_labels
from mereo.bench.tables import milliseconds, three_digits
from mereo.errors import UsageError
from mereo.layers import StochasticDepth
from mereo.models import VisionModel, convert, create_model, get_model_entry, is_model, list_models
from mereo.models.conversion import give_weights, same_tensors
from mereo.models.layout import LAYOUTS
from mereo.models.registry import outline

PRESETS = ("davit_tiny", "maxvit_tiny_tf_224", "volo_d1_224", "halonet26t", "shvit_s4", "cait_xxs24_224",
           "biformer_tiny", "spectformer_small", "spectformer_h_small", "ninformer_cifar")  # fmt: skip
"""Measured by default."""
SMALL = ("davit_tiny", "maxvit_pico_rw_256", "volo_d1_224", "halonet26t", "shvit_s1", "cait_xxs24_224", "biformer_tiny",
         "spectformer_small", "ninformer_cifar")  # fmt: skip
"""Measured under `--quick`: a small network of each family."""
OURS, FUSED, COMPILED = "ours", "ours fused", "ours compiled"
TIMM, TIMM_LAST, TIMM_COMPILED = "timm", "timm channels-last", "timm compiled"
TAKES = (
    "() -> the same network as a torch.nn.Module of timm's or of its authors' code, from images (batch, channels,"
    " height, width) to scores (batch, classes); it gets the weights of ours"
)
NUDGE = 0.02
"""Standard deviation of the noise that is added to every initial weight."""


def why_not_timm(name: str) -> str | None:
    """The reason why there is no class of timm to compare a preset with; None if timm has the class."""
    if find_spec("timm") is None:
        return "timm is not installed"
    if not is_model(name):
        return f"{name} is not registered"
    entry = get_model_entry(name)
    if not any(layout.library == "timm" and layout.module is entry.module for layout in LAYOUTS):
        return f"no conversion between timm's {name} and ours is registered"
    import timm

    return None if timm.is_model(entry.name) else f"timm has no {name}"


def drop_nothing(model: nn.Module) -> None:
    """Turn off dropout and stochastic depth, so that two networks compute the same."""
    module: Any
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, StochasticDepth):
            module.rate = 0.0
        elif type(module).__name__ == "DropPath":
            module.drop_prob = 0.0


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Move all weights and draw the statistics of batch norms."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    for parameter in model.parameters():
        parameter.add_(NUDGE * torch.randn_like(parameter))


@lru_cache(maxsize=1)
def _theirs(name: str) -> nn.Module:
    reason = why_not_timm(name)
    if reason is not None:
        raise UnavailableError(reason)
    import timm

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = timm.create_model(get_model_entry(name).name)
        randomise(model)
    drop_nothing(model)
    return model


@lru_cache(maxsize=1)
def _ours(name: str) -> VisionModel:
    if why_not_timm(name) is None:
        model = cast(VisionModel, convert(_theirs(name)))
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = create_model(name)
            randomise(model)
    drop_nothing(model)
    return model


def make_theirs(name: str) -> nn.Module:
    """Timm's network of a preset, with random weights; UnavailableError with the reason if timm has none."""
    return copy.deepcopy(_theirs(name))


def make_ours(name: str) -> VisionModel:
    """Our network with the weights of timm's; with random ones where timm has none."""
    return copy.deepcopy(_ours(name))


def _scores(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _workload(
    model: nn.Module, mode: Mode, layout: torch.memory_format | None, names: Callable[[], list[str]]
) -> Workload:
    """Inference, or a training step: cross-entropy and AdamW, whose rate is 0 so that every step computes the same."""
    if layout is not None:
        model = model.to(memory_format=layout)

    def scores(images: Tensor) -> Tensor:
        return _scores(model(images if layout is None else images.contiguous(memory_format=layout)))

    if mode == "forward":
        model.eval()
        return Workload(lambda images, labels: scores(images))
    model.train()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(list(parameters.values()), lr=0.0, weight_decay=0.0)

    def gradients() -> tuple[Tensor | None, ...]:
        return tuple(parameters[name].grad for name in names())

    return Workload(
        lambda images, labels: F.cross_entropy(scores(images), labels),
        tuple(parameters.values()), optimizer.step, gradients,
    )  # fmt: skip


def compared(name: str, library: str = "mereo") -> list[str]:
    """Names in a library of the parameters that are the same tensor in every library that has the network."""
    model = outline(name)
    layouts = [layout.library for layout in LAYOUTS if layout.module is type(model)]
    same = {each: same_tensors(model, each) for each in layouts}
    ours = [key for key, _ in model.named_parameters() if all(key in names for names in same.values())]
    return ours if library == "mereo" else [same[library][key] for key in ours]


def adopt(factory: Callable[..., Any], setting: Setting) -> Callable[[Mode], Workload]:
    """A network from outside, which gets the weights of ours under timm's names or under its authors' names."""
    name = setting.word("model")

    def build(mode: Mode) -> Workload:
        ours, model = make_ours(name), factory()
        try:
            library = give_weights(ours, model)
        except UsageError as error:
            raise UnavailableError(str(error)) from error
        drop_nothing(model)
        return _workload(model.to(setting.device), mode, None, lambda: compared(name, library))

    return build


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Timm eager, channels-last and compiled, then ours eager, fused and compiled; ours first if timm has none."""
    name, device = setting.word("model"), setting.device
    ours_only = why_not_timm(name) is not None

    def ours(mode: Mode) -> Workload:
        return _workload(make_ours(name).to(device), mode, None, partial(compared, name))

    def fused(mode: Mode) -> Workload:
        if mode == "training":
            raise UnavailableError("a fused network is for inference")
        return _workload(make_ours(name).to(device).fuse(), mode, None, partial(compared, name))

    def theirs(layout: torch.memory_format | None) -> Callable[[Mode], Workload]:
        def build(mode: Mode) -> Workload:
            return _workload(make_theirs(name).to(device), mode, layout, partial(compared, name, "timm"))

        return build

    exact = None if ours_only else cache(partial(exact_error, name, device))
    own = (Contender(OURS, ours, exact=exact), Contender(FUSED, fused), _compiled(COMPILED, ours, exact))
    timm = (
        Contender(TIMM, theirs(None)),
        Contender(TIMM_LAST, theirs(torch.channels_last)),
        _compiled(TIMM_COMPILED, theirs(None)),
    )
    return (*own, *timm) if ours_only else (*timm, *own)


def _compiled(name: str, build: Callable[[Mode], Workload], exact: Callable[[], float] | None = None) -> Contender:
    return replace(compiled(Contender(name, build, exact=exact)), name=name)


def exact_error(name: str, device: str) -> float:
    """The largest relative error of our gradients in float64, at batch 2, compared with timm's."""
    images, labels = images_and_labels(Setting({"batch": 2}, device), *_shape_and_classes(name))

    def gradients(make: Callable[[str], nn.Module], names: Iterable[str]) -> Outcome:
        torch.manual_seed(0)
        model = make(name).to(device).double().train()
        loss = F.cross_entropy(_scores(model(images.double().contiguous())), labels)
        loss.backward()
        parameters = dict(model.named_parameters())
        return Outcome((loss.detach(),), tuple(parameters[name].grad for name in names), altered=False)

    with torch.random.fork_rng():
        agreement = compare(gradients(make_ours, compared(name)), gradients(make_theirs, compared(name, "timm")))
    return max(agreement.output, agreement.gradient or 0.0)


def _shape_and_classes(name: str) -> tuple[tuple[int, ...], int]:
    entry = get_model_entry(name)
    return entry.pretrained_cfg(entry.defaults)["input_size"], entry.defaults["num_classes"]


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Images of the preset's size, in the ordinary layout, and labels."""
    images, labels = images_and_labels(setting, *_shape_and_classes(setting.word("model")))
    return images.contiguous(), labels


def work(setting: Setting, mode: Mode) -> Work:
    """Operations of the network, and the traffic of its parameters."""
    model = create_model(setting.word("model")).to(setting.device)
    return network_work(model, torch.rand(2, *model.image_shape, device=setting.device), setting.size("batch"), mode)


def _skip(setting: Setting) -> str | None:
    name = setting.word("model")
    return None if is_model(name) else f"no network {name!r} is registered (`mereo models` lists them)"


COLUMNS = (
    "network", "mode", "batch", OURS, FUSED, COMPILED, TIMM, TIMM_LAST, TIMM_COMPILED, "timm / ours", "timm / fused",
    "timm compiled / ours", "timm compiled / ours compiled", "peak, ours / timm",
)  # fmt: skip


def digest(run: Run) -> list[Table]:
    """A row for each network, mode and batch: medians in milliseconds, and how many times as fast ours is."""
    rows = []
    for group in run.groups():
        by_name = {m.contender: m for m in group}

        def seconds(name: str, by_name: dict[str, Measurement] = by_name) -> float | None:
            m = by_name.get(name)
            return m.wall.median if m is not None and m.wall is not None and m.status == "ok" else None

        def ratio(theirs: str, ours: str, seconds: Callable[[str], float | None] = seconds) -> str:
            one, two = seconds(theirs), seconds(ours)
            return f"{one / two:.2f}x" if one and two else "-"

        names = (OURS, FUSED, COMPILED, TIMM, TIMM_LAST, TIMM_COMPILED)
        shown = [milliseconds(value) if (value := seconds(name)) is not None else "-" for name in names]
        peaks = [by_name[name].resident if name in by_name else None for name in (OURS, TIMM)]
        first = group[0]
        rows.append((
            str(first.sizes["model"]), first.mode, str(first.sizes["batch"]), *shown,
            ratio(TIMM, OURS), ratio(TIMM, FUSED), ratio(TIMM_COMPILED, OURS), ratio(TIMM_COMPILED, COMPILED),
            three_digits(peaks[0] / peaks[1]) if peaks[0] and peaks[1] else "-",
        ))  # fmt: skip
    # Without timm, or without compiled contenders, whole columns are empty.
    shown_columns = [i for i in range(len(COLUMNS)) if any(row[i] != "-" for row in rows)]
    columns = tuple(COLUMNS[i] for i in shown_columns)
    notes = ("medians in milliseconds of contenders that agree with the reference; above 1x ours is faster",)
    table = Table("ours and timm", columns, tuple(tuple(row[i] for i in shown_columns) for row in rows), notes)
    return [table] if rows else []


BACKBONES = Suite(
    "backbones",
    "vision backbones and timm's with the same weights: inference at batch 8 and 1, and a training step",
    TAKES,
    {"batch": 8, "model": PRESETS[0]},
    inputs,
    contenders,
    work,
    sweeps={"model": PRESETS},
    quick={"batch": 1},
    quick_sweeps={"model": SMALL},
    memory=("forward", "training"),
    tolerance=1e-3,
    gradient_tolerance=5e-2,  # of float32 in channels-last memory, where timm's own differ from its contiguous ones
    by_norm=True,
    adopt=adopt,
    digest=digest,
    also=(({"batch": 1}, ("forward",)),),
    skip=_skip,
    models=list_models,
)
