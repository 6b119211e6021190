"""Loss terms that distil attention from the dense attention that it replaces, made from the names of layers."""

from collections.abc import Sequence

from torch import Tensor, nn

from mereo.errors import UsageError, check_network
from mereo.mechanisms.attention.hosted import output_name
from mereo.mechanisms.attention.sparse import SparsifinerAttention, map_losses
from mereo.surgery.sea import SeaHosted
from mereo.training.matching import Match


def layers_of(student: nn.Module, kind: type[nn.Module]) -> list[str]:
    """Names of the layers of a kind; UsageError without any."""
    check_network(student, "student")
    names = [name for name, module in student.named_modules() if isinstance(module, kind)]
    if not names:
        raise UsageError(
            f"student is a {type(student).__name__} without a {kind.__name__}; replace its attention first."
        )
    return names


def inside(layer: str, child: str) -> str:
    """The name of a child of a layer, which may be the whole model."""
    return f"{layer}.{child}" if layer else child


def sea_matches(
    student: nn.Module, *, hidden: Sequence[str] = (), hidden_weight: float = 10.0, logits_weight: float | None = None
) -> list[Match]:
    """The terms of SEA: its estimate and its own dense map against the teacher's, and the outputs of its heads.

    approx + prob + context for each layer;   mean over `hidden` of hidden_weight MSE + logits_weight KL

    The teacher needs the couplings of its attention, as `MultiHeadAttention` and `mereo.watchable` have them.

    Args:
        student: what `mereo.sea` gives.
        hidden: layers of both networks whose outputs are matched too.
        hidden_weight: of these; the paper has 10 for classifiers and 5 for language.
        logits_weight: of the outputs, as logits; the paper has 0.1 or 0.2, and 0.1 for the loss of the task.

    Reference: arXiv:2310.01777, section 3.3.
    """
    matches = []
    for layer in layers_of(student, SeaHosted):
        coupling = inside(layer, "coupling")
        matches += [
            Match("coupling", coupling, inside(layer, f"sea.{part}"), loss=map_losses) for part in ("estimate", "dense")
        ]
        matches.append(Match("input", inside(layer, output_name(student.get_submodule(layer)))))
    matches += [Match("layer", name, weight=hidden_weight / len(hidden)) for name in hidden]
    if logits_weight is not None:
        matches.append(Match(loss="kl", weight=logits_weight))
    return matches


def reconstruction(approx: Tensor, teacher: Tensor) -> Tensor:
    """Sum of squared differences between an estimate and the teacher's couplings, without the rows of the class token.

    Shapes: approx (batch, heads, queries, tokens), teacher (batch, heads, tokens, tokens) -> scalar.
    """
    return (approx - teacher[:, :, -approx.shape[2] :]).square().sum()


def sparsifiner_matches(student: nn.Module, *, weight: float | None = None, tokens: str = "norm") -> list[Match]:
    """The terms of Sparsifiner in its present phase.

    "reconstruction":  weight / layers * sum over layers of |estimate - teacher's couplings|^2
    "sparse":          weight (KL of the logits + MSE of the tokens of the last layer); add task="cross_entropy"

    The teacher needs the couplings of its attention in the first phase, as `mereo.watchable` has them.

    Args:
        student: what `mereo.sparsifiner` gives, after `set_phase`.
        weight: 0.01 in the first phase and 0.5 in the second by default, as in the paper.
        tokens: the layer whose output are the last tokens; "" leaves that term out.

    Reference: arXiv:2303.13755, section 3.4.
    """
    layers = layers_of(student, SparsifinerAttention)
    phases = {student.get_submodule(name).phase for name in layers}
    if phases == {"reconstruction"}:
        each = (0.01 if weight is None else weight) / len(layers)
        return [
            Match(
                "coupling", inside(layer, "coupling"), inside(layer, "predictor"), student_what="layer",
                loss=reconstruction, weight=each,
            )
            for layer in layers
        ]  # fmt: skip
    weight = 0.5 if weight is None else weight
    matches = [Match(loss="kl", weight=weight)]
    return [*matches, Match("layer", tokens, weight=weight)] if tokens else matches
