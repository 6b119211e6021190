"""Couplings replaced by their usual names, compared with loops."""

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core import Coupling
from mereo.core.replacements import WORDS
from mereo.errors import UsageError


class Exchange(nn.Module):
    def __init__(self, over: str, senders: int = 3) -> None:
        super().__init__()
        self.coupling = Coupling(over)  # type: ignore[arg-type]
        drawn = torch.Generator().manual_seed(3)
        self.scores = torch.randn(2, 2, 3, senders, generator=drawn, dtype=torch.float64)

    def forward(self, mask: Tensor | None = None) -> Tensor:
        return self.coupling(self.scores, mask)


def replaced(model: nn.Module, word: str, mask: Tensor | None = None) -> Tensor:
    with mereo.intervene(model, {"coupling": word}):
        return model(mask)  # type: ignore[no-any-return]


@pytest.mark.parametrize("over", ["senders", "receivers", "both"])
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_normalised_together_keeps_its_sum(over: str, masked: bool) -> None:
    model = Exchange(over)
    mask = torch.tensor([[True, False, True], [True, True, True], [False, True, True]]) if masked else None
    axes = {"senders": (-1,), "receivers": (-2,), "both": (-2, -1)}[over]
    for word in ("uniform", "strongest", "identity"):
        found, own = replaced(model, word, mask), model(mask)
        assert torch.allclose(found.sum(axes), own.sum(axes)), word
        assert mask is None or not found[..., ~mask].any()
    assert not replaced(model, "zero", mask).any()


def test_each_word_is_its_formula() -> None:
    model = Exchange("senders")
    own = model()
    uniform, identity, strongest = (replaced(model, word) for word in ("uniform", "identity", "strongest"))
    shuffled = replaced(model, "shuffled")
    for image in range(2):
        for head in range(2):
            for receiver in range(3):
                line = own[image, head, receiver].tolist()
                assert uniform[image, head, receiver].tolist() == pytest.approx([1 / 3] * 3)
                assert identity[image, head, receiver].tolist() == pytest.approx(
                    [float(receiver == s) for s in range(3)]
                )
                expected = [float(value == max(line)) for value in line]
                assert strongest[image, head, receiver].tolist() == pytest.approx(expected)
                assert sorted(shuffled[image, head, receiver].tolist()) == pytest.approx(sorted(line))
    assert not torch.equal(shuffled, own)


def test_an_unknown_word_lists_those_that_there_are() -> None:
    model = Exchange("senders", 4)
    with pytest.raises(UsageError, match="'coupling' is 'flat'") as error, mereo.intervene(model, {"coupling": "flat"}):
        pass
    assert all(repr(word) in str(error.value) for word in WORDS)
    with pytest.raises(
        UsageError, match=r"'coupling' is 'identity'.*\(batch, heads, receivers, senders\).*\(2, 2, 3, 4\)"
    ):
        replaced(model, "identity")


def test_a_result_of_another_shape_is_refused_with_its_axes() -> None:
    model = Exchange("senders")
    with (
        pytest.raises(UsageError, match=r"\(batch, heads, receivers, senders\) \(2, 2, 3\)"),
        mereo.intervene(model, {"coupling": lambda couplings: couplings[..., 0]}),
    ):
        model()


def test_gates_take_words_of_their_own() -> None:
    signal = nn.Sequential(mereo.core.Signal("gates"))
    with mereo.intervene(signal, {"0": "zero"}):
        assert not signal(torch.ones(2)).any()
    with pytest.raises(UsageError, match="'0' is 'uniform'"), mereo.intervene(signal, {"0": "uniform"}):
        pass
