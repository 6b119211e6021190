"""The Tensor Brain: regions of a scene become a sentence of subject, predicate and object; memories without senses.

Source: Tresp, Sharifzadeh, Konopatzki, Ma 2020, arXiv:2001.11027. Only its abstract was available: this is a
reconstruction from it and from the operations of the follow-up arXiv:2109.13392, not the authors' network.
Cost: 2 r (f + 2 w + |I|) + 2 w^2 FLOPs for each measurement in a group I; other groups are not scored, nor triples.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_count
from mereo.mechanisms.attention.memory.index_feedback import IndexFeedback
from mereo.models.layers import layer_depths
from mereo.models.network import Network
from mereo.models.registry import register_model

MODES = ("argmax", "sample", "expected", "teacher")
ORDERS = ("sop", "spo")
TRIPLE = ("subject", "predicate", "object")


class Decoded(NamedTuple):
    """What a chain of measurements reads from a scene, a memory, or nothing.

    Attributes:
        chosen: the concept of each measurement, int64 (batch, measurements); the first three are subject, predicate and
            object, whatever their order in time.
        log_shares: logarithm of the probability of each concept in its group, (batch, measurements, concepts); the
            logarithm of the smallest number for concepts of other groups.
        states: the representation q at each measurement, (batch, measurements, dim).
        memory: the working memory h behind the last measurement, (batch, memory).
    """

    chosen: Tensor
    log_shares: Tensor
    states: Tensor
    memory: Tensor

    @property
    def log_probability(self) -> Tensor:
        """Logarithm of the joint probability of the chosen concepts: (batch,)."""
        return self.log_shares.gather(-1, self.chosen.unsqueeze(-1)).squeeze(-1).sum(-1)


class TensorBrain(Network):
    """Measure subject, object and predicate one after the other on a shared representation.

    q = g(v) + V h,   P(k) = softmax_k(<a_k, sigmoid(q)> + b_k) in a group,   q' = q + a_k,   h' = tanh(W [q'; h] + c)

    P(s, p, o) = P(s | v_s) P(o | v_o, s) P(p | v_p, s, o)

    The representation q is made anew for each region; only the working memory h is carried on. Concepts are one list:
    entities, predicates, classes, attributes, and the moments that are remembered. The parameters of a concept are its
    embedding a_k, which leads up to the index and back down.

    Perception reads regions. Episodic memory (`remember`, `recall`) stores g(v) as the embedding of a new moment, once
    and without a gradient, and reads it in place of g(v). Semantic memory (`imagine`, `log_prior`) has no g(v).

    Args:
        features: f, size of the features of a region.
        entities, predicates: concepts of these groups.
        classes, attributes: concepts of the groups that are also measured at the subject and the object; 0 for none.
        dim: r, size of the representation.
        memory: w, size of the working memory.
        hidden: units of a hidden layer of g; 0 for an affine g.
        bias: learn b; otherwise it is 0.
        order: "sop", subject, object, predicate; or "spo".
        relation: whether a third region, such as the union of both, is attended for the predicate.
        feedback: write embeddings back into the representation; without, indices are read and change nothing.
        moments: how many scenes episodic memory holds.

    Shapes: regions (batch, 2, features), or 3 with `relation` -> logarithms of the probabilities (batch, measurements,
        concepts) along its own decisions.

    Reads as: `index.coupling`, couplings[b, 0, 0, k], is the probability of concept k of the group that is measured.

    Deviates: the paper's equations are not available. The order, the form of the working memory, the start of the
        embeddings and one column of a moment for each region are ours; V has a bias, from which imagination starts.

    Reference: arXiv:2001.11027; arXiv:2109.13392.
    """

    output_kind: ClassVar[str] = "triples"
    input_kind: ClassVar[str] = "regions"
    outputs_argument: ClassVar[str | None] = None
    classifier: ClassVar[str] = "index"
    classifier_parts: ClassVar[tuple[str, ...]] = ("index",)
    registered_with_timm = False

    moments: Tensor
    stored: Tensor

    def __init__(
        self,
        features: int = 24,
        *,
        entities: int = 12,
        predicates: int = 5,
        classes: int = 0,
        attributes: int = 0,
        dim: int = 32,
        memory: int = 32,
        hidden: int = 0,
        bias: bool = False,
        order: str = "sop",
        relation: bool = False,
        feedback: bool = True,
        moments: int = 64,
    ) -> None:
        super().__init__()
        check_count(1, features=features, entities=entities, predicates=predicates, dim=dim, memory=memory)
        check_count(classes=classes, attributes=attributes, hidden=hidden, moments=moments)
        check_choice("order", order, ORDERS)
        self._shape, self.num_features, self.order = (3 if relation else 2, features), dim, order
        self.feedback = feedback
        sizes = {"entity": entities, "predicate": predicates, "class": classes, "attribute": attributes}
        unary = [name for name in ("class", "attribute") if sizes[name]]
        self.measured = (*TRIPLE, *(f"{part} {name}" for part in ("subject", "object") for name in unary))
        """Names of the measurements, in the order of `Decoded.chosen`."""
        start = 0
        starts: dict[str, int] = {}
        for name, size in sizes.items():
            starts[name], start = start, start + size
        self.num_classes = start
        self.spans = [
            (starts[name], starts[name] + sizes[name]) for name in map(self._group_of, self.measured)
        ]  # of the concepts that compete in each measurement
        self.sense: nn.Module = nn.Linear(features, dim)
        if hidden:
            self.sense = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.recall_state = nn.Linear(memory, dim)
        self.update = nn.Linear(dim + memory, memory)
        self.index = IndexFeedback(dim, self.num_classes, bias=bias)
        self.register_buffer("moments", torch.zeros(moments, self._shape[0], dim))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))

    @staticmethod
    def _group_of(measurement: str) -> str:
        kind = measurement.rpartition(" ")[2]
        return {"subject": "entity", "object": "entity"}.get(kind, kind)

    # --- reading ----------------------------------------------------------------------------------------------------

    def forward_features(self, inputs: Tensor) -> Tensor:
        """g(v) of each region: (batch, regions, dim)."""
        if inputs.shape[1:] != self._shape or inputs.dim() != 3 or not inputs.is_floating_point():
            raise UsageError(
                f"regions are {inputs.dtype} of shape {tuple(inputs.shape)}; they must be floating point"
                f" (batch, {self._shape[0]}, {self._shape[1]}), or make the network with other features or relation."
            )
        views: Tensor = self.sense(inputs)
        return views

    def _check_target(self, target: Tensor, mode: str) -> None:
        if target.dim() != 2 or target.shape[1] != len(self.measured) or target.dtype != torch.int64:
            raise UsageError(
                f"target is {target.dtype} of shape {tuple(target.shape)}; it must be int64 (batch,"
                f" {len(self.measured)}): {', '.join(self.measured)}."
            )
        if torch.compiler.is_compiling() or not len(target):
            return
        for name, (first, last), column in zip(self.measured, self.spans, target.unbind(1), strict=True):
            wrong = (column < first) | (column >= last)
            if mode != "teacher":
                wrong &= column != -1
            if bool(wrong.any()):
                raise UsageError(
                    f"target holds {int(column[wrong][0])} as {name}; it must be {first} to {last - 1}, or make the"
                    " network with the numbers of entities and predicates of the data."
                )

    def chain(
        self,
        views: Tensor | None,
        mode: str = "argmax",
        target: Tensor | None = None,
        *,
        feedback: bool | None = None,
        count: int = 1,
        generator: torch.Generator | None = None,
    ) -> Decoded:
        """Take all measurements.

        Args:
            views: what is read in place of g(v), (batch, regions, dim); None for nothing.
            mode: "argmax" and "sample" choose a concept, "expected" feeds the mean embedding back, "teacher" follows
                the target.
            target: given concepts, int64 (batch, measurements), -1 where the mode decides.
            feedback: write the embedding back; the network's own when None.
            count: the batch, if there are neither views nor target.
            generator: of the samples.
        """
        check_choice("mode", mode, MODES)
        feedback = self.feedback if feedback is None else feedback
        if target is None and mode == "teacher":
            raise UsageError("target is None, and mode is 'teacher'; give the concepts to follow.")
        if target is not None:
            self._check_target(target, mode)
            if views is not None and target.shape[0] != views.shape[0]:
                raise UsageError(
                    f"target has {target.shape[0]} rows and regions {views.shape[0]}; give one for each scene."
                )
        like, size = self.recall_state.weight, count if target is None else target.shape[0]
        hidden = like.new_zeros(size if views is None else views.shape[0], self.update.out_features)
        chosen: dict[int, Tensor] = {}
        shares: dict[int, Tensor] = {}
        states: dict[int, Tensor] = {}
        for part in self.order:
            measured, view = self._attended(part)
            state = self.recall_state(hidden)
            if views is not None and view < views.shape[1]:
                state = views[:, view] + state
            for place in measured:
                states[place] = state
                first, last = self.spans[place]
                share = self.index.shares(state.unsqueeze(1), span=slice(first, last)).squeeze(1)
                shares[place] = nn.functional.pad(share, (first, self.num_classes - last))
                if mode == "sample":
                    made = first + torch.multinomial(share.float(), 1, generator=generator).squeeze(1)
                else:
                    made = first + share.argmax(1)
                if target is not None:
                    made = torch.where(target[:, place] >= 0, target[:, place], made)
                chosen[place] = made
                if feedback and mode == "expected":
                    state = self.index.expected(state, share, slice(first, last))
                elif feedback:
                    state = self.index.feed_back(state, made)
            hidden = self.update(torch.cat((state, hidden), -1)).tanh()
        every = range(len(self.measured))
        probabilities = torch.stack([shares[place] for place in every], 1)
        # The loss reads the couplings that are recorded. A probability of zero has a finite logarithm.
        wide = probabilities.to(accumulation_type(probabilities))
        logs = wide.clamp(min=torch.finfo(wide.dtype).tiny).log().to(probabilities.dtype)
        return Decoded(
            torch.stack([chosen[place] for place in every], 1), logs,
            torch.stack([states[place] for place in every], 1), hidden,
        )  # fmt: skip

    def _attended(self, part: str) -> tuple[list[int], int]:
        """The measurements of one region, and the place of that region."""
        place = "spo".index(part)
        more = [n for n, name in enumerate(self.measured) if name.startswith(f"{TRIPLE[place]} ")]
        return [place, *more], {"s": 0, "o": 1, "p": 2}[part]

    def decode(
        self,
        regions: Tensor,
        mode: str = "argmax",
        target: Tensor | None = None,
        *,
        feedback: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> Decoded:
        """Perception: the sentences for scenes; the arguments are explained at `chain`."""
        return self.chain(self.forward_features(regions), mode, target, feedback=feedback, generator=generator)

    # --- memory -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def remember(self, regions: Tensor) -> Tensor:
        """Store scenes as new moments, once: a_t = g(v). Nothing else changes. -> their times, int64 (batch,)."""
        first, room = int(self.stored), len(self.moments)
        if first + len(regions) > room:
            raise UsageError(
                f"moments is {room}, {first} are stored and {len(regions)} come; make the network with more moments."
            )
        self.moments[first : first + len(regions)] = self.forward_features(regions).to(self.moments)
        self.stored += len(regions)
        return torch.arange(first, first + len(regions), device=self.moments.device)

    def recall(
        self,
        times: Tensor,
        mode: str = "argmax",
        target: Tensor | None = None,
        *,
        feedback: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> Decoded:
        """Episodic memory: the sentences for remembered moments, int64 (batch,), without senses."""
        if times.dim() != 1 or times.dtype != torch.int64:
            raise UsageError(f"times are {times.dtype} of shape {tuple(times.shape)}; they must be int64 (batch,).")
        if len(times) and not 0 <= int(times.min()) <= int(times.max()) < int(self.stored):
            raise UsageError(
                f"times are from {int(times.min())} to {int(times.max())}; {int(self.stored)} moments are stored."
            )
        return self.chain(self.moments[times], mode, target, feedback=feedback, generator=generator)

    def imagine(self, count: int, prior: Tensor | None = None, *, generator: torch.Generator | None = None) -> Decoded:
        """Semantic memory: sample sentences without senses, (count, ...).

        Args:
            prior: probabilities or counts of the subjects, (entities,); the learned start when None.
        """
        check_count(count=count)
        target = torch.full((count, len(self.measured)), -1, device=self.stored.device)
        if prior is not None:
            first, last = self.spans[0]
            if prior.shape != (last - first,) or not bool((prior >= 0).all()) or not float(prior.sum()) > 0:
                raise UsageError(
                    f"prior is of shape {tuple(prior.shape)}; it must be {last - first} counts of at least 0, with one"
                    " above 0."
                )
            drawn = torch.multinomial(prior.to(target.device).float(), count, replacement=True, generator=generator)
            target[:, 0] = first + drawn
        return self.chain(None, "sample", target, generator=generator)

    def log_prior(self, target: Tensor) -> Tensor:
        """Logarithm of the probability of sentences in semantic memory: int64 (batch, measurements) -> (batch,)."""
        return self.chain(None, "teacher", target).log_probability

    # --- what every network has -------------------------------------------------------------------------------------

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logarithms of probabilities along its decisions; with `pre_logits` the representations that are scored."""
        made = self.chain(features)
        return made.states.sigmoid() if pre_logits else made.log_shares

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self._shape

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: the senses, the working memory, the indices."""
        names = [name for name, _ in self.named_parameters()]
        return layer_depths(names, ["sense", "update"], self.classifier_parts)


_register = partial(
    register_model,
    module=TensorBrain,
    source="arXiv:2001.11027",
    rate=3e-3,
)
_WITHOUT = "only the abstract of the paper was available, without its equations"

_register(
    "tensor_brain",
    summary="Tensor Brain of 12 entities and 5 predicates, for scenes of two regions with 24 features.",
    reconstruction=_WITHOUT,
    parameters=4_480,
    tiny={"features": 5, "entities": 3, "predicates": 2, "dim": 6, "memory": 4, "moments": 3},
    variants={
        "classes and attributes": {"classes": 2, "attributes": 3, "bias": True},
        "predicate second, of a region of its own": {"order": "spo", "relation": True, "hidden": 7},
        "without feedback": {"feedback": False},
    },
)
_register(
    "tensor_brain_pictures",
    summary="Tensor Brain of ten classes of images and three relations, for pictures of two small images.",
    reconstruction=_WITHOUT,
    parameters=21_824,
    features=68,
    entities=10,
    predicates=3,
    dim=64,
    memory=64,
    hidden=64,
    relation=True,
)
