"""States of other modules: refused in one line, because a scan reads as much memory as its own state would have."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mereo.catalogue import MECHANISMS
from mereo.core.kernels.gated_scan import GatedScan, gated_scan
from mereo.core.kernels.linear_scan import Scan, linear_scan
from mereo.core.kernels.prefix_attention import Prefixes, no_tokens, prefixes
from mereo.errors import UsageError
from mereo.mechanisms.scan import RGLRU, S6, SSD, Aaren, LightningAttention, NormalisedAttention, QuasiLSTM

STREAMING = {name: entry for name, entry in MECHANISMS.items() if hasattr(entry.target, "extend")}
SIZES: dict[str, Callable[[int, int], nn.Module]] = {
    "S6": S6, "SSD": lambda dim, n: SSD(dim, state_dim=n), "Aaren": Aaren, "LightningAttention": LightningAttention,
    "NormalisedAttention": lambda dim, n: NormalisedAttention(dim, qk_dim=n), "RGLRU": lambda dim, n: RGLRU(dim),
    "QuasiLSTM": lambda dim, n: QuasiLSTM(dim),
}  # fmt: skip


def state_of(module: nn.Module, tokens: Tensor) -> object:
    return module.eval().extend(tokens)[1]  # type: ignore[operator]


@pytest.mark.parametrize("name", STREAMING)
def test_states_of_other_mechanisms_are_refused(name: str) -> None:
    module, (tokens, *_) = STREAMING[name].example()
    module.eval().extend(tokens, state_of(module, tokens))  # type: ignore[operator]
    for other, entry in STREAMING.items():
        if other != name:
            state = state_of(*[part if number == 0 else part[0] for number, part in enumerate(entry.example())])
            with pytest.raises(UsageError, match="state"):
                module.extend(tokens, state)  # type: ignore[operator]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("other", [(8, 4), (32, 4), (16, 8)])
def test_states_of_other_sizes_are_refused(name: str, other: tuple[int, int]) -> None:
    if name in ("RGLRU", "QuasiLSTM") and other[0] == 16:
        pytest.skip("the second size is none of its own")
    module, wrong = SIZES[name](16, 4).eval(), SIZES[name](*other)
    state = state_of(wrong, torch.randn(2, 3, other[0]))
    with pytest.raises(UsageError, match="state"):
        module.extend(torch.randn(2, 5, 16), state)


def test_a_state_of_another_batch_or_kind_is_refused() -> None:
    module, tokens = S6(8).eval(), torch.randn(2, 3, 8)
    with pytest.raises(UsageError, match="S6: tokens are of 3 samples, and the state of 2; give the same number"):
        module.extend(torch.randn(3, 3, 8), state_of(module, tokens))
    with pytest.raises(UsageError, match="S6: state is a dict; give a state that the same network returned, or None"):
        module.extend(tokens, {})  # type: ignore[arg-type]


def test_kernels_refuse_a_state_of_other_sizes() -> None:
    q, k, v = (torch.randn(1, 2, 3, n) for n in (4, 4, 1))
    with pytest.raises(UsageError, match=r"state is \(1, 2, 5, 1\); it must be \(1, 2, 4, 1\)"):
        linear_scan(Scan(q, k, v, torch.zeros(2), torch.zeros(1, 2, 5, 1)))
    with pytest.raises(UsageError, match=r"state is \(1, 2, 5, 1\); it must be \(1, 2, 4, 1\)"):
        gated_scan(GatedScan(q, k, v, -torch.rand(1, 2, 3, 4), torch.zeros(1, 2, 5, 1)))
    with pytest.raises(UsageError, match="the summary before is"):
        prefixes(Prefixes(q[..., 0], v, no_tokens(q[:, :1, :, 0], v[:, :1])))
