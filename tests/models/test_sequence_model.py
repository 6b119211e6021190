"""What the base of sequence models does for blocks that keep no state, add to the loss, or read a limited length."""

import pytest
import torch
from torch import Tensor, nn

from mereo.core import AddedLoss, added_losses
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models import SequenceModel
from mereo.tasks import Language
from mereo.training.config import TrainConfig


class Mean(nn.Module):
    """Each token becomes the mean of those up to it; the loss grows by the mean square."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj, self.size = nn.Linear(dim, dim), AddedLoss("size", 0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        kept = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(-1).to(x)
        mean = (x * kept).cumsum(1) / kept.cumsum(1).clamp(min=1)
        self.size(x.square().mean())
        return x + self.proj(mean)


def small(longest: int | None = None, tied: bool = True) -> SequenceModel:
    model = SequenceModel(11, 6, 8, [Mean(6), Mean(6)], nn.LayerNorm(6), tied=tied, scale=2.0)
    model.longest = longest
    with torch.no_grad():
        model.embedding.weight.mul_(30)
    return model.eval()


def test_without_states_all_tokens_are_read_again() -> None:
    model, tokens = small(), torch.randint(11, (2, 7))
    assert not model.streams
    whole = model(tokens)
    rows, state = [], None
    for t in range(7):
        row, state = model.step(tokens[:, t], state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), whole)
    assert state is not None and state.position == 7 and state.tokens is not None and state.blocks == ()
    parts = [model.extend(tokens[:, :4])]
    parts.append(model.extend(tokens[:, 4:], parts[0][1]))
    torch.testing.assert_close(torch.cat([scores for scores, _ in parts], 1), whole)
    drawn = model.generate(tokens, 3, temperature=0)
    assert int(drawn[0, 0]) == int(whole[0, -1].argmax())


def test_a_limited_length_is_a_window_that_moves() -> None:
    model, tokens = small(longest=4), torch.randint(11, (1, 9))
    state = None
    for t in range(9):
        row, state = model.step(tokens[:, t], state)
    torch.testing.assert_close(row, model(tokens[:, 5:])[:, -1])
    assert state is not None and state.position == 9 and state.tokens is not None and state.tokens.shape == (1, 4)
    assert model.generate(tokens[:, :3], 6).shape == (1, 6)
    with pytest.raises(UsageError, match="reads at most 4; give shorter parts"):
        model(tokens)


def test_terms_of_blocks_are_part_of_the_training_loss_only() -> None:
    model, batch = small(), Batch(tokens=torch.randint(11, (2, 8)))
    x = model.embed(batch.tokens[:, :-1])  # type: ignore[index]
    expected = 0.5 * (x.square().mean() + model.blocks[0](x).square().mean())
    objective = Language().objective(model, TrainConfig())
    for mode, term in ((True, expected), (False, 0.0 * expected)):
        loss, scores = objective.train(mode)(batch)
        torch.testing.assert_close(loss, objective.loss(scores, batch) + term)
        assert list(objective.added) == ["size"] * mode


def test_a_tied_head_is_the_embedding() -> None:
    model, tokens = small(), torch.randint(11, (1, 3))
    torch.testing.assert_close(model(tokens), model.forward_features(tokens) @ model.embedding.weight.T)
    assert model.get_classifier() is model.embedding and max(model.layer_depths().values()) == 2
    untied = small(tied=False)
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in model.parameters()) == 66
    model.train().set_grad_checkpointing()
    model(tokens)
    added_losses(model)["size"].backward()
    assert model.embedding.weight.grad is not None and model.embedding.weight.grad.any()
