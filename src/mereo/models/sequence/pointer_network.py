"""Pointer networks: an LSTM reads points, another points to them one after the other, until it points to the end.

Source: Vinyals, Fortunato, Jaitly 2015, arXiv:1506.03134.
Cost: 8 H (in + H) FLOPs for each point and each step, 3 n H for each pointer among n points; W1 e_j is computed once.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_count, check_positive
from mereo.mechanisms.attention.dense.pointer import Pointer
from mereo.models.layers import layer_depths
from mereo.models.network import Network
from mereo.models.registry import register_model

END = 0
"""The choice that ends a sequence; choice j >= 1 is point j."""
ATTENTION = ("pointer", "blend", "none")
CONSTRAINTS = ("none", "no_repeat", "tour")
State = tuple[Tensor, Tensor]
"""Hidden and cell state of an LSTM, (batch, dim) each."""


class Recurrence(nn.Module):
    """An LSTM of one layer that stops at the end of each sequence.

    Args:
        inputs, dim: size of the inputs and of the states.

    Shapes: x (batch, steps, inputs), state 2 x (batch, dim), mask bool (batch, steps) or None
        -> (batch, steps, dim), and the state behind the last step that is not masked.

    Deviates: weights have other names than in `torch.nn.LSTM`, which torch.compile does not take.
    """

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.inputs = nn.Parameter(torch.empty(4 * dim, inputs))
        self.states = nn.Parameter(torch.empty(4 * dim, dim))
        self.input_bias = nn.Parameter(torch.empty(4 * dim))
        self.state_bias = nn.Parameter(torch.empty(4 * dim))

    def step(self, x: Tensor, state: State) -> State:
        """One step: x (batch, inputs)."""
        hidden, cell = torch.lstm_cell(x, state, self.inputs, self.states, self.input_bias, self.state_bias)
        return hidden, cell

    def forward(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        if mask is None and not torch.compiler.is_compiling():
            weights: list[Tensor] = [self.inputs, self.states, self.input_bias, self.state_bias]
            first = state[0].unsqueeze(0), state[1].unsqueeze(0)
            out, hidden, cell = torch.lstm(x, first, weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
            return out, (hidden[0], cell[0])
        outputs = []
        for t, each in enumerate(x.unbind(1)):
            after = self.step(each, state)
            if mask is not None:
                here = mask[:, t, None]
                after = torch.where(here, after[0], state[0]), torch.where(here, after[1], state[1])
            state = after
            outputs.append(state[0])
        return torch.stack(outputs, 1), state


class Memory(NamedTuple):
    """The points as the decoder reads them.

    Attributes:
        points: its inputs; the first stands for no point: (batch, 1 + points, coordinates).
        states: of the encoder, the first for the end: (batch, 1 + points, dim).
        keys: W1 of the states, (batch, 1 + points, dim); the states if nothing attends to them.
        present: bool (batch, 1 + points).
        hidden, cell: of the encoder behind the last point, (batch, dim).
    """

    points: Tensor
    states: Tensor
    keys: Tensor
    present: Tensor
    hidden: Tensor
    cell: Tensor


class PointerNetwork(Network):
    """Read points, and point to some of them in an order.

    e_j = LSTM(P_j),   d_i = LSTM(P_(C_(i-1))),   p(C_i | C_1 .. C_(i-1), P) = softmax_j(v . tanh(W1 e_j + W2 d_i))

    Choice 0 is the end, with a learned e_0; choice j >= 1 is point j. Before the first choice and behind the end the
    decoder reads a learned start.

    Args:
        dim: H, size of the states.
        attention: "pointer"; "blend", in which the couplings mix the encoder's states and a layer of fixed size scores
            the choices, LSTM with attention; or "none", in which that layer only sees d_i.
        constraint: of the search: "none"; "no_repeat", no point twice; "tour", each point once and then the end.
        coordinates: of a point.
        embed: let a linear layer read points before the LSTMs.
        spread: all weights start uniform in -spread .. spread; small networks learn sooner from more than the paper's.
        most: points for which there are scores, without a pointer; a pointer takes any number.
        steps_per_point: most steps that a search takes for each point; one more is for the end.
        context: points of an example.

    Shapes: points (batch, points, coordinates), lengths int64 (batch,), targets int64 (batch, steps), -1 for padding
        -> logarithms of probabilities (batch, steps, 1 + points): of the targets, or along the greedy search.

    Reads as: `head.coupling`, couplings[b, 0, i, j], is the probability of choice j at step i; of "blend" it is
        `attention.coupling`, the share of state j in what step i reads.

    Deviates: none of the options is in the paper but `attention` and the constraint of tours. Of "blend" the next step
        reads the mixture beside the point, and d_i as its own state. A choice beyond the points of a sample is left
        out of the scores of a fixed layer as well.

    Reference: arXiv:1506.03134, sections 2.1 to 2.3 and 4.1.
    """

    output_kind: ClassVar[str] = "pointers"
    input_kind: ClassVar[str] = "points"
    outputs_argument: ClassVar[str | None] = None
    counted_from_shapes: ClassVar[bool] = False
    registered_with_timm = False

    def __init__(
        self,
        dim: int = 256,
        *,
        attention: str = "pointer",
        constraint: str = "none",
        coordinates: int = 2,
        embed: bool = False,
        spread: float = 0.08,
        most: int = 50,
        steps_per_point: int = 1,
        context: int = 10,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, coordinates=coordinates, spread=spread)
        check_count(1, most=most, steps_per_point=steps_per_point, context=context)
        check_choice("attention", attention, ATTENTION)
        check_choice("constraint", constraint, CONSTRAINTS)
        self.kind, self.constraint, self.most, self.steps_per_point = attention, constraint, most, steps_per_point
        self._shape, self.dim = (context, coordinates), dim
        read = dim if embed else coordinates
        self.embedding = nn.Linear(coordinates, dim) if embed else None
        self.start = nn.Parameter(torch.empty(coordinates))
        self.end = None if attention == "none" else nn.Parameter(torch.empty(dim))
        self.encoder = Recurrence(read, dim)
        self.decoder = Recurrence(read + (dim if attention == "blend" else 0), dim)
        self.attention = Pointer(dim) if attention == "blend" else None
        self.num_features = 2 * dim if attention == "blend" else dim
        self.head = Pointer(dim) if attention == "pointer" else nn.Linear(self.num_features, most + 1)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -spread, spread)
        if context > most:
            self._check_number(context)

    # --- reading ----------------------------------------------------------------------------------------------------

    def check_points(self, points: Tensor, lengths: Tensor | None = None) -> None:
        """UsageError unless points are (batch, at least 1, coordinates), with a length from 1 to their number a set."""
        coordinates = self.input_shape[1]
        if points.dim() != 3 or points.shape[1] < 1 or points.shape[2] != coordinates or not points.is_floating_point():
            raise UsageError(
                f"points are {points.dtype} of shape {tuple(points.shape)}; they must be floating point (batch, at"
                f" least one point, {coordinates})."
            )
        if self.kind != "pointer":
            self._check_number(points.shape[1])
        if lengths is None or torch.compiler.is_compiling():
            return
        if lengths.shape != points.shape[:1]:
            raise UsageError(f"lengths are {tuple(lengths.shape)}; they must be ({len(points)},), one for each set.")
        if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= points.shape[1]:
            wrong = int(lengths.min()) if int(lengths.min()) < 1 else int(lengths.max())
            raise UsageError(f"lengths hold {wrong}; a set has from 1 to {points.shape[1]} points.")

    def _check_number(self, count: int) -> None:
        if self.kind != "pointer" and count > self.most:
            raise UsageError(
                f"points are {count} in a set, and with attention={self.kind!r} there are scores for {self.most}; make"
                " the network with a larger most, or with attention='pointer'."
            )

    def _embedded(self, points: Tensor) -> Tensor:
        return points if self.embedding is None else self.embedding(points)

    def forward_features(self, inputs: Tensor, lengths: Tensor | None = None) -> Memory:
        """The encoder's output for points; `lengths` are the numbers of points, if some sets are padded."""
        self.check_points(inputs, lengths)
        count, number = inputs.shape[0], inputs.shape[1]
        there = None
        if lengths is not None:
            there = torch.arange(number, device=inputs.device) < lengths.unsqueeze(1)
        zeros = inputs.new_zeros(count, self.dim)
        states, (hidden, cell) = self.encoder(self._embedded(inputs), (zeros, zeros), there)
        present = inputs.new_ones(count, 1 + number, dtype=torch.bool)
        if there is not None:
            present = torch.cat((present[:, :1], there), 1)
        if self.end is not None:
            states = torch.cat((self.end.to(states.dtype).expand(count, 1, -1), states), 1)
        pointer = self.attention if isinstance(self.attention, Pointer) else self.head
        keys = pointer.keys(states) if isinstance(pointer, Pointer) else states
        points = self._embedded(torch.cat((self.start.expand(count, 1, -1), inputs), 1))
        return Memory(points, states, keys, present, hidden, cell)

    # --- pointing ---------------------------------------------------------------------------------------------------

    def _advance(
        self, memory: Memory, choices: Tensor, state: State, blended: Tensor | None
    ) -> tuple[Tensor, State, Tensor | None]:
        """One step behind `choices` (batch, beams): features (batch, beams, num_features) and the next state."""
        beams = choices.shape[1]
        x = memory.points.gather(1, choices.unsqueeze(-1).expand(-1, -1, memory.points.shape[-1]))
        if self.attention is None:
            state = self.decoder.step(x.flatten(0, 1), state)
            return state[0].unflatten(0, (-1, beams)), state, None
        if blended is None:
            blended = memory.states.new_zeros(x.shape[0], beams, self.dim)
        state = self.decoder.step(torch.cat((x, blended.to(x.dtype)), -1).flatten(0, 1), state)
        hidden = state[0].unflatten(0, (-1, beams))
        blended = self.attention.point(memory.keys, hidden, memory.present) @ memory.states
        return torch.cat((blended, hidden), -1), state, blended

    def _log_shares(self, memory: Memory, features: Tensor, allowed: Tensor) -> Tensor:
        """Features (batch, steps, num_features), allowed bool (batch, ..., choices) -> (batch, steps, choices)."""
        if isinstance(self.head, Pointer):
            shares = self.head.point(memory.keys, features, allowed)
        else:
            scores = self.head(features)[..., : allowed.shape[-1]]
            wide = scores.to(accumulation_type(scores)).masked_fill(~allowed, -torch.inf)
            shares = wide.softmax(-1).to(scores.dtype)
        wide = shares.to(accumulation_type(shares))
        # The loss reads the couplings that are recorded. A probability of zero has a finite logarithm.
        return wide.clamp(min=torch.finfo(wide.dtype).tiny).log().to(shares.dtype)

    def score(self, memory: Memory, targets: Tensor) -> Tensor:
        """Logarithms of the probabilities of each choice behind the targets before it: (batch, steps, choices).

        Args:
            targets: the true choices, -1 for padding: int64 (batch, steps).
        """
        if targets.dim() != 2 or targets.shape[0] != len(memory.points) or targets.dtype != torch.int64:
            raise UsageError(
                f"targets are {targets.dtype} of shape {tuple(targets.shape)}; they must be int64"
                f" ({len(memory.points)}, steps)."
            )
        last = memory.points.shape[1] - 1
        if targets.numel() and not torch.compiler.is_compiling():
            low, high = (int(value) for value in targets.aminmax())
            if low < -1 or high > last:
                raise UsageError(
                    f"targets hold {low if low < -1 else high}; they must be from -1 (padding) to {last}, the points."
                )
        before = torch.cat((torch.zeros_like(targets[:, :1]), targets[:, :-1].clamp(min=0)), 1)
        state = memory.hidden, memory.cell
        if self.attention is None:
            x = memory.points.gather(1, before.unsqueeze(-1).expand(-1, -1, memory.points.shape[-1]))
            features, _ = self.decoder(x, state)
        else:
            steps, blended = [], None
            for each in before.unbind(1):
                made, state, blended = self._advance(memory, each.unsqueeze(1), state, blended)
                steps.append(made)
            features = torch.cat(steps, 1)
        return self._log_shares(memory, features, memory.present.unsqueeze(1))

    @staticmethod
    def _allowed(memory: Memory, visited: Tensor, constraint: str) -> Tensor:
        """The choices that a constraint leaves: visited bool (batch, beams, choices) -> the same shape."""
        present = memory.present.unsqueeze(1)
        if constraint == "none":
            return present.expand_as(visited)
        left = (present & ~visited)[..., 1:]
        end = ~left.any(-1, keepdim=True)
        return torch.cat((torch.ones_like(end) if constraint == "no_repeat" else end, left), -1)

    def search(
        self, memory: Memory, beam: int = 1, constraint: str | None = None, *, whole: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose step by step: the most probable choice, or with a beam the most probable sequence that it finds.

        Args:
            memory: of the encoder, which all beams share.
            beam: sequences that are followed at once.
            constraint: the network's own when None.
            whole: take all steps, also behind the end of every sequence.

        Shapes: -> choices int64 (batch, steps), END behind the end; and of the beam that is best at each step the
            logarithms of the probabilities (batch, steps, choices) and the features (batch, steps, num_features).
        """
        check_count(1, beam=beam)
        constraint = self.constraint if constraint is None else constraint
        check_choice("constraint", constraint, CONSTRAINTS)
        if memory.hidden.shape[-1] != self.dim:
            raise UsageError(f"memory has states of {memory.hidden.shape[-1]} numbers; this network's have {self.dim}.")
        count, choices = memory.present.shape
        steps = self.steps_per_point * (choices - 1) + 1
        state: State = tuple(each.repeat_interleave(beam, 0) for each in (memory.hidden, memory.cell))  # type: ignore[assignment]
        chosen = memory.present.new_zeros(count, beam, 1, dtype=torch.int64)
        visited = memory.present.new_zeros(count, beam, choices)
        total = memory.hidden.new_zeros(count, beam, dtype=accumulation_type(memory.hidden))
        total[:, 1:] = -torch.inf  # all beams begin alike
        only_end = torch.arange(choices, device=visited.device) == END
        blended, ended = None, visited[..., 0]
        shares: list[Tensor] = []
        features: list[Tensor] = []
        limits = self.steps_per_point * memory.present[:, 1:].sum(1, keepdim=True)  # padding gives no further steps
        for step in range(steps):
            ended = ended | (step > limits)
            made, state, blended = self._advance(memory, chosen[..., -1], state, blended)
            allowed = self._allowed(memory, visited, constraint)
            found = self._log_shares(memory, made, allowed)
            shares.append(found[:, :1])
            features.append(made[:, :1])
            # A sequence that has ended goes on with its end, at no cost.
            gains = found.to(total.dtype).masked_fill(~allowed, -torch.inf)
            gains = torch.where(ended.unsqueeze(-1), torch.where(only_end, 0.0, -torch.inf), gains)
            total, places = (total.unsqueeze(-1) + gains).flatten(1).topk(beam, 1)
            parents, choice = places // choices, places % choices
            if beam > 1:
                rows = (parents + beam * torch.arange(count, device=parents.device).unsqueeze(1)).flatten()

                def of_parents(kept: Tensor, rows: Tensor = rows) -> Tensor:
                    return kept.flatten(0, 1)[rows].unflatten(0, (count, beam))

                state = state[0][rows], state[1][rows]
                chosen, visited, ended = map(of_parents, (chosen, visited, ended))
                blended = None if blended is None else of_parents(blended)
            chosen = torch.cat((chosen, choice.unsqueeze(-1)), -1)
            visited = visited.scatter(-1, choice.unsqueeze(-1), True)
            ended = ended | (choice == END)
            if not whole and bool(ended.all()):
                break
        best = nn.functional.pad(chosen[:, 0, 1:], (0, steps + 1 - chosen.shape[-1]), value=END)
        return best, torch.cat(shares, 1), torch.cat(features, 1)

    @torch.no_grad()
    def decode(
        self, points: Tensor, lengths: Tensor | None = None, *, beam: int = 1, constraint: str | None = None
    ) -> Tensor:
        """Choices for sets of points: int64 (batch, steps), 0 from the end on, j >= 1 for point j.

        Args:
            lengths: numbers of points, if some sets are padded at their end.
            beam: sequences that are followed at once; 1 takes the most probable choice of each step.
            constraint: "none", "no_repeat" or "tour"; the network's own when None.
        """
        return self.search(self.forward_features(points, lengths), beam, constraint)[0]

    def forward_head(self, features: Memory, pre_logits: bool = False) -> Tensor:
        """Logarithms of probabilities along the greedy search; with `pre_logits` the features that are scored."""
        _, shares, made = self.search(features, whole=True)
        return made if pre_logits else shares

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        memory = self.forward_features(inputs, lengths)
        return self.forward_head(memory) if targets is None else self.score(memory, targets)

    # --- what every network has -------------------------------------------------------------------------------------

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self._shape

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: the encoder, the decoder, the head."""
        names = [name for name, _ in self.named_parameters()]
        return layer_depths(names, ["encoder", "decoder"], self.classifier_parts)


_register = partial(register_model, module=PointerNetwork, source="arXiv:1506.03134")

_register(
    "pointer_network",
    summary="Pointer network of 256 units, for sets of any number of points.",
    parameters=664_066,
    tiny={"dim": 6, "context": 4},
    variants={
        "blend": {"attention": "blend", "most": 5},
        "no attention": {"attention": "none", "most": 5},
        "embedded points in space": {"embed": True, "coordinates": 3, "steps_per_point": 2},
    },
)
_register(
    "pointer_network_512",
    summary="Pointer network of 512 units.",
    parameters=2_638_850,
    dim=512,
)
_register(
    "pointer_network_small",
    summary="Pointer network of 64 units that learns sets of ten points in a minute on a CPU.",
    parameters=75_074,
    dim=64,
    embed=True,
    spread=0.4,
)
