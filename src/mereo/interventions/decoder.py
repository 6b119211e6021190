"""What interventions on decoders share: their attention layers, the tokens of a call, and how changes are attached.

A decoder is any model whose layers attend by couplings that `mereo.record` sees and project the merged heads by a
linear
layer: networks of mereo, and of `transformers` or timm, whose layers are borrowed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mereo.core.coupling import Coupling
from mereo.core.observe import Call, observables
from mereo.core.record import watching
from mereo.core.topology import Causal
from mereo.errors import UsageError
from mereo.mechanisms.attention.borrowed import BorrowedCoupling, intervene
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention

NORMS, PROJECTIONS = ("norm1", "input_layernorm", "ln_1"), ("proj", "o_proj", "out_proj", "c_proj")


class Layer(NamedTuple):
    """An attention layer.

    Attributes:
        name: of its coupling, as `mereo.record` names it.
        coupling: of the layer.
        norm: whose input is the residual stream that enters the layer; None if there is none.
        projection: from the merged heads back to the residual stream.
    """

    name: str
    coupling: Coupling
    norm: nn.Module | None
    projection: nn.Module


def attention_layers(model: nn.Module, chosen: Iterable[int] | None = None) -> list[tuple[int, Layer]]:
    """The decoder's layers with their numbers from 0, in order: the causal ones, or all if no layer is causal.

    Args:
        chosen: numbers of layers, from the end if negative; all by default.

    Raises:
        UsageError: for a model without attention, and for layers that it does not have.
    """
    modules, found = dict(model.named_modules()), []
    for name, coupling in observables(model).items():
        if not isinstance(coupling, Coupling):
            continue
        home = name.rpartition(".")[0]
        host = modules[home]
        around = [host, *([modules[home.rpartition(".")[0]]] if home else [])]
        project = next((getattr(host, each) for each in PROJECTIONS if hasattr(host, each)), None)
        norm = next((getattr(each, norm) for each in around for norm in NORMS if hasattr(each, norm)), None)
        if isinstance(project, nn.Module):
            borrowed = isinstance(coupling, BorrowedCoupling) and getattr(host, "is_causal", False)
            found.append((borrowed or coupling.topology == Causal(), Layer(name, coupling, norm, project)))
    layers = [layer for causal, layer in found if causal] or [layer for _, layer in found]
    if not layers:
        raise UsageError(f"model is {type(model).__name__}, which has no attention that mereo knows; give a decoder.")
    count, numbers = len(layers), list(range(len(layers)) if chosen is None else chosen)
    for number in numbers:
        if not -count <= number < count:
            raise UsageError(f"layers hold {number}; {type(model).__name__} has the layers 0 to {count - 1}.")
    return [(number, layers[number]) for number in sorted({number % count for number in numbers})]


class Reading:
    """Where a decoder is in a sequence, as its calls show.

    The first call reads the prompt. A later call over all tokens that is no longer than it starts a new prompt, a
    longer one repeats the prompt with what was generated, and one with a cache goes on.

    Attributes:
        prompt: number of tokens of the prompt.
        image: whether the call that runs reads the image; calls without it are not changed.
        step: calls that read the image so far.
    """

    def __init__(self, model: nn.Module, visual: Any) -> None:
        self.prompt, self.image, self.step = 0, True, 0
        self.visual = token_types(model, visual)

    def enter(self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Before the model runs: whether this call reads the image."""
        self.image = bool(options.get("image", True))
        self.step += self.image

    def begins(self, receivers: int, senders: int) -> bool:
        """Whether a call with this number of tokens reads a prompt from its start; its length is then kept."""
        if receivers == senders and (not self.prompt or senders <= self.prompt):
            self.prompt = senders
            return True
        return False

    def image_tokens(self, senders: int, batch: int) -> Tensor:
        """Which of the senders are image tokens: bool (batch, senders)."""
        if self.visual.shape[1] > self.prompt:
            raise UsageError(f"visual covers {self.visual.shape[1]} tokens, and the prompt has {self.prompt}.")
        if len(self.visual) not in (1, batch):
            raise UsageError(f"visual covers {len(self.visual)} samples, and the batch has {batch}.")
        return extended(self.visual, senders).expand(batch, -1)


def extended(mask: Tensor, length: int) -> Tensor:
    """A mask with False for tokens behind its end: bool (batch, n) -> (batch, length)."""
    return torch.nn.functional.pad(mask, (0, length - mask.shape[1]))


def token_types(model: nn.Module, visual: Any) -> Tensor:
    """Which tokens of the prompt are image tokens.

    Args:
        visual: bool (tokens,) or (batch, tokens), a first token and the one behind the last, or None for what the model
            states as `visual_tokens`.

    Shapes: -> bool (batch or 1, tokens).
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    visual = getattr(model, "visual_tokens", None) if visual is None else visual
    if visual is None:
        raise UsageError(f"visual is None, and {type(model).__name__} states no visual_tokens; give a mask of tokens.")
    if not isinstance(visual, Tensor):
        first, last = visual
        visual = torch.arange(last) >= first
    if visual.dtype != torch.bool or visual.dim() not in (1, 2):
        raise UsageError(
            f"visual is {visual.dtype} {tuple(visual.shape)}; it must be bool (tokens,) or (batch, tokens)."
        )
    if not bool(visual.any()):
        raise UsageError("visual marks no token; mark the image tokens of the prompt.")
    return visual.to(device).reshape(-1, visual.shape[-1])


def check_share(**arguments: float) -> None:
    """UsageError for the first keyword argument outside [0, 1]."""
    for argument, value in arguments.items():
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UsageError(f"{argument} is {value!r}; it must be a number from 0 to 1.")


Change = Callable[[Tensor, Call, bool], Tensor]
"""(scores or couplings of the rows from the first one on, the call, whether it reads a prompt) -> the same changed."""


class RowEditor:
    """An observer that changes the rows of a coupling from one on; fused attention computes the rows before.

    Args:
        name: of the coupling.
        reading: whose calls are changed.
        first: from the number of tokens read before to the first row that may change.
        on_scores, on_couplings: what changes them.
    """

    def __init__(
        self, name: str, reading: Reading, first: Callable[[int], int], on_scores: Change | None = None,
        on_couplings: Change | None = None,
    ) -> None:  # fmt: skip
        self.name, self.reading, self.first = name, reading, first
        self.change_scores, self.change, self.begins, self.given = on_scores, on_couplings, False, False

    def first_row(self, receivers: int, senders: int) -> int:
        """The first row that may change; the number of rows if none does."""
        if not self.reading.image:
            return receivers
        self.begins, self.given = self.reading.begins(receivers, senders), True
        return min(max(self.first(senders - receivers), 0), receivers)

    def _changed(self, change: Change | None, value: Tensor, call: Call) -> Tensor:
        if change is None or not self.reading.image:
            return value
        receivers, senders = call.scores.shape[-2:]
        if not self.given:
            self.begins, self.given = self.reading.begins(receivers, senders), True
        start = min(max(self.first(senders - receivers), 0), receivers)
        call.name = self.name
        tail = change(value[:, :, start:], call, self.begins)
        return tail if start == 0 else torch.cat((value[:, :, :start], tail), 2)

    def scores(self, call: Call) -> Tensor:
        return self._changed(self.change_scores, call.scores, call)

    def couplings(self, call: Call) -> Tensor:
        assert call.couplings is not None
        changed = self._changed(self.change, call.couplings, call)
        self.given = False
        return changed

    def signal(self, value: Tensor, kind: str) -> Tensor:
        return value


@contextmanager
def attached(
    model: nn.Module, reading: Reading, layers: Iterable[Layer], editor: Callable[[str], RowEditor],
    *, hooks: Iterable[Any] = (), watched: Mapping[str, Any] | None = None,
) -> Iterator[None]:  # fmt: skip
    """Editors on layers, functions on other couplings and hooks until the block ends, by an error too."""
    with ExitStack() as stack:
        for handle in hooks:
            stack.callback(handle.remove)
        stack.callback(model.register_forward_pre_hook(reading.enter, with_kwargs=True).remove)
        if watched:
            stack.enter_context(intervene(model, watched))
        stack.enter_context(watching({layer.name: (layer.coupling, editor(layer.name)) for layer in layers}))
        yield


class ExampleDecoder(nn.Module):
    """The smallest decoder with image tokens, on which interventions are tested; its first token is a sink.

    x_l = x_(l-1) + attention(norm(x_(l-1)))

    Shapes: (batch, tokens, 12) -> the same; tokens 1 to 4 are of the image.
    """

    visual_tokens = (1, 5)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ExampleLayer() for _ in range(4))

    def forward(self, x: Tensor, image: bool = True) -> Tensor:
        sink = torch.zeros_like(x[:1, :3])
        sink[:, ::2, 0] = 30.0  # the start and an image token
        x = torch.cat((x[:, :3] + sink, x[:, 3:]), 1)
        if not image:
            x = torch.cat((x[:, :1], x[:, 5:]), 1)
        for layer in self.layers:
            x = layer(x)
        return x

    @staticmethod
    def without_image(x: Tensor, **options: Any) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Arguments with which it reads the same text alone."""
        return (x,), {"image": False}


class ExampleLayer(nn.Module):
    """A layer of `ExampleDecoder`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(12)
        self.attention = MultiHeadAttention(12, 4, causal=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.attention(self.norm1(x))
        return out


def example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small decoder and its inputs."""
    return ExampleDecoder(), (torch.randn(2, 8, 12),)
