"""Position routing: number by number, equivalent couplings, statistics of the batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo import intervene, record
from mereo.errors import UsageError
from mereo.mechanisms.routing import PositionRouting


def some(**options: bool) -> tuple[PositionRouting, Tensor]:
    torch.manual_seed(0)
    routing = PositionRouting(4, 3, **options).double()
    children = 2 * torch.randn(5, 4, 6, dtype=torch.float64)
    routing(children)
    return routing.eval(), children


@torch.no_grad()
def test_equals_the_equations() -> None:
    routing, children = some()
    mean, variance = routing.norm.running_mean, routing.norm.running_var
    out = routing(children)
    for b in range(5):
        for d in range(6):
            x = ((children[b, :, d] - mean) / (variance + 1e-5).sqrt()).relu()
            units = (routing.first.weight @ x + routing.first.bias).relu()
            sums = routing.second.weight @ units + routing.second.bias
            torch.testing.assert_close(out[b, :, d], F.gelu(sums.sigmoid()))


@torch.no_grad()
def test_public_view_cuts_the_numbers_of_all_receivers_into_pieces() -> None:
    routing, children = some()
    public, _ = some(public_view=True)
    plain, viewed = routing(children), public(children)
    for b in range(5):
        flat = [plain[b, r, d] for d in range(6) for r in range(3)]
        for r in range(3):
            torch.testing.assert_close(viewed[b, r], torch.stack(flat[6 * r : 6 * r + 6]))


@torch.no_grad()
@pytest.mark.parametrize("public_view", [False, True])
def test_couplings_and_votes_agree_with_the_output(public_view: bool) -> None:
    routing, children = some(public_view=public_view)
    expected = routing(children)
    with record(routing) as trace:
        torch.testing.assert_close(routing(children), expected)
    couplings, votes = trace["coupling"], routing.votes(children).dense()
    assert couplings.shape == (5, 6, 3, 5) and votes.shape == (5, 6, 3, 5, 6)
    # Contributions are means over the heads.
    sums = torch.einsum("bhrs,bhrse->bre", couplings, votes) / 6
    torch.testing.assert_close(F.gelu(sums.sigmoid()), expected)


@torch.no_grad()
def test_what_is_intervened_acts() -> None:
    routing, children = some()
    with intervene(routing, {"coupling": torch.zeros_like}):
        blank = routing(children)
    torch.testing.assert_close(blank, torch.full_like(blank, F.gelu(blank.new_tensor(0.5)).item()))


@torch.no_grad()
def test_only_batch_statistics_let_images_see_each_other() -> None:
    routing, children = some()
    torch.testing.assert_close(routing(children)[:2], routing(children[:2]))
    routing, children = some(batch_stats=True)
    assert not torch.allclose(routing(children)[:2], routing(children[:2]))
    x = children.transpose(1, 2).flatten(0, 1)
    normed = ((x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(routing.normalised(children), normed.view(5, 6, 4))


def test_wrong_shapes() -> None:
    with pytest.raises(UsageError, match="batch, 4, dim"):
        PositionRouting(4, 3)(torch.zeros(2, 3, 6))
