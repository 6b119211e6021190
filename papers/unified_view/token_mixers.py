"""Token mixers as one template: matrices of its instances compared with the library's mechanisms."""

import torch
from torch import Tensor, nn

from mereo.explain import MixingFacts, draw_mixing_matrices, mixing_facts, mixing_matrix
from mereo.mechanisms.attention import BlockAttention, MultiHeadAttention, NeighborhoodAttention
from mereo.mechanisms.gate import MixerGate, SqueezeExcite
from mereo.mechanisms.mixer import SpectralGating
from mereo.mechanisms.scan import LightningAttention
from papers.common.settings import Settings
from papers.unified_view.mixer_template import INSTANCES, make_mixer

SIDE, DIM = 5, 8
TEMPLATE, OURS = "template.png", "mechanisms.png"


def mechanisms() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Some of the library's mechanisms, and the shape of their inputs."""
    length = SIDE**2
    tokens, maps, cells = (2, length, DIM), (2, DIM, SIDE, SIDE), (2, SIDE, SIDE, DIM)
    return {
        "multi_head": (MultiHeadAttention(DIM, 2), tokens),
        "multi_head, causal": (MultiHeadAttention(DIM, 2, causal=True), tokens),
        "neighborhood": (NeighborhoodAttention(DIM, 2, window=3), cells),
        "block_attention": (BlockAttention(DIM, window=(SIDE, 1), head_dim=4), cells),
        "lightning": (LightningAttention(DIM, 2), tokens),
        "spectral_gating": (SpectralGating(DIM, SIDE), tokens),
        "mixer_gate": (MixerGate(DIM, length, 16), tokens),
        "squeeze_excite": (SqueezeExcite(DIM, 4), maps),
    }


def _row(mixing: MixingFacts) -> dict[str, object]:
    def yes(value: bool) -> str:
        return "yes" if value else "no"

    return {
        "depends on tokens": yes(mixing.depends_on_input),
        "causal": yes(mixing.causal),
        "rows sum to 1": yes(mixing.rows_sum_to_one),
        "rank": mixing.rank,
        "filled %": 100 * mixing.filled,
    }


def run(settings: Settings) -> dict[str, object]:
    """Two tables and two pictures."""
    torch.manual_seed(0)
    length = SIDE**2
    tokens = torch.randn(2, length, DIM, dtype=torch.float64)
    matrices: dict[str, Tensor] = {}
    rows: list[dict[str, object]] = []
    for name, instance in INSTANCES.items():
        mixer = make_mixer(name, length, DIM).double()
        matrices[name] = mixing_matrix(mixer, tokens)
        with torch.no_grad():
            expected = mixer.explicit(tokens)
            error = float((mixer(tokens) - expected).abs().max() / expected.abs().max())
        made = {"mixer": name, "M": instance.matrix, "V": instance.value, **_row(mixing_facts(mixer, tokens))}
        rows.append({**made, "error of the fast product": f"{error:.0e}"})
    draw_mixing_matrices(matrices, "Mixing matrices of the instances of the template", settings.folder / TEMPLATE)

    extracted: dict[str, Tensor] = {}
    own_rows: list[dict[str, object]] = []
    for name, (made_here, shape) in mechanisms().items():
        module = made_here.double().eval()
        inputs = torch.randn(shape, dtype=torch.float64)
        axes = (1, 2) if shape[1:3] == (SIDE, SIDE) else None
        for how in ("auto", "jacobian"):
            matrix = mixing_matrix(module, inputs, how=how, token_axes=axes)
            # One head means the norms of a Jacobian: every attention here has two.
            extracted[f"{name}: {'couplings' if matrix.shape[1] > 1 else 'Jacobian'}"] = matrix
        own_rows.append({"mechanism": name, **_row(mixing_facts(module, inputs, token_axes=axes))})
    title = "Mixing matrices of mechanisms: recorded couplings, and norms of the Jacobian"
    draw_mixing_matrices(extracted, title, settings.folder / OURS)
    return {
        "tables": {
            f"instances of Y = out(norm(M(X) V(X))), {length} tokens of {DIM}": rows,
            "mechanisms of the library: couplings where they have some, else norms of the Jacobian": own_rows,
        },
        "notes": ["Error: of the fast product against the explicit matrix, relative, in float64."],
        "pictures": [TEMPLATE, OURS],
    }
