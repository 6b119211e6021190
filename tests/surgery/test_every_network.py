"""Surgery on every family of networks: the copy runs, or a UsageError says why there is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.models.registry import families
from mereo.surgery import linearise, watchable

DONE: dict[str, Callable[[Any], nn.Module]] = {
    "moh": lambda m: mereo.moh(m, 0.5),
    "moh by tokens": lambda m: mereo.moh(m, 0.5, routing="tokens"),
    "evit": lambda m: mereo.evit(m, 0.5),
    "dual": lambda m: mereo.dual_cross_attention(m, 0.5),
    "linearise": lambda m: linearise(m, 2),
    "sea": lambda m: mereo.sea(m, columns=4, top_k=2),
    "sparsifiner": lambda m: mereo.sparsifiner(m, 0.5),
    "tap": mereo.tap,
    "watchable": watchable,
}


@pytest.mark.parametrize("family", sorted(families("images")))
def test_copies_run_or_are_refused(family: str) -> None:
    entry = families("images")[family]
    model = mereo.create_model(entry.name, **(entry.tiny or {})).eval()
    images, ran = torch.rand(2, *model.image_shape), set()
    expected = model(images)
    for name, operate in DONE.items():
        try:
            copy = operate(model)
            assert not any(module.training for module in copy.modules()), name
            outputs = copy(images)
        except UsageError:
            continue
        assert outputs.shape == expected.shape and outputs.isfinite().all(), name
        ran.add(name)
        if name == "watchable":
            torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-4)
    assert family not in ("vit", "volo") or "watchable" in ran
