"""The cross-entropy method for settings of few values each, and word vectors whose settings it chooses.

Source: arXiv:2410.18441; Rubinstein 1999, doi:10.1023/A:1010091220143; word vectors: arXiv:1310.4546.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.training.step import descend

Setting = tuple[Any, ...]
"""A value of each parameter, in the order of the space."""


def cross_entropy_search(
    score: Callable[[Setting], float],
    space: Mapping[str, Sequence[Any]],
    *,
    samples: int = 50,
    elite: float = 0.1,
    smoothing: float = 0.7,
    rounds: int = 10,
    sure: float = 0.95,
    seed: int = 0,
) -> tuple[Setting, list[float]]:
    """The best setting that was drawn, and the mean score of the elite of each round; high scores are good.

    p <- (1 - smoothing) p + smoothing (frequencies of the values among the elite), for each parameter by itself

    Args:
        space: the values of each parameter, all equally probable at first.
        samples: settings drawn in a round.
        elite: share of them that the probabilities move towards, at least one setting.
        rounds: the largest number; it ends before if every parameter has a value of a probability above `sure`.
    """
    draws = torch.Generator().manual_seed(seed)
    values = list(space.values())
    probabilities = [torch.full((len(each),), 1 / len(each)) for each in values]
    best: tuple[float, Setting] = -math.inf, ()
    history: list[float] = []
    for _ in range(rounds):
        # (samples, parameters)
        drawn = torch.stack([p.multinomial(samples, replacement=True, generator=draws) for p in probabilities], 1)
        settings = [tuple(v[i] for v, i in zip(values, row, strict=True)) for row in drawn.tolist()]
        scores = torch.tensor([score(each) for each in settings], dtype=torch.float64)
        kept = scores.argsort(descending=True, stable=True)[: max(round(elite * samples), 1)]
        history.append(scores[kept].mean().item())
        first = int(kept[0])
        if scores[first].item() > best[0]:
            best = scores[first].item(), settings[first]
        for parameter, p in enumerate(probabilities):
            frequencies = drawn[kept, parameter].bincount(minlength=len(p)) / len(kept)
            probabilities[parameter] = (1 - smoothing) * p + smoothing * frequencies
        if all(p.max().item() > sure for p in probabilities):
            break
    return best[1], history


class SkipGram(nn.Module):
    """Word vectors by negative sampling: a word scores the words around it above words drawn at random."""

    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.centre, self.around = nn.Embedding(words, dim), nn.Embedding(words, dim)
        nn.init.normal_(self.centre.weight, std=dim**-0.5)
        nn.init.zeros_(self.around.weight)

    def forward(self, centre: Tensor, around: Tensor) -> Tensor:
        """Scores of pairs: (pairs,) and (pairs, candidates) -> (pairs, candidates)."""
        return (self.around(around) @ self.centre(centre).unsqueeze(-1)).squeeze(-1)


def numbered(words: Sequence[str], source: Sequence[str], most: int) -> Tensor:
    """Words as numbers, int64 (words that remain,); only the `most` most frequent words of the source remain."""
    known = {word: number for number, (word, _) in enumerate(Counter(source).most_common(most))}
    return torch.tensor([known[word] for word in words if word in known])


def pairs_within(text: Tensor, window: int) -> Tensor:
    """All pairs of words at most `window` apart, in both orders: (pairs, 2)."""
    ahead = [torch.stack((text[:-apart], text[apart:]), 1) for apart in range(1, window + 1)]
    both = torch.cat(ahead)
    return torch.cat((both, both.flip(1)))


def train_vectors(text: Tensor, setting: Setting, steps: int, batch_size: int = 512, seed: int = 0) -> SkipGram:
    """Word vectors after some steps of Adam.

    Args:
        setting: window, dim, negatives and rate.
    """
    window, dim, negatives, rate = setting
    draws, words = torch.Generator().manual_seed(seed), int(text.max()) + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SkipGram(words, dim)
    pairs, optimizer = pairs_within(text, window), torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        centre, around = pairs[torch.randint(len(pairs), (batch_size,), generator=draws)].unbind(1)
        others = text[torch.randint(len(text), (batch_size, negatives), generator=draws)]
        scores = model(centre, torch.cat((around.unsqueeze(1), others), 1))
        descend(optimizer, rate, F.softplus(-scores[:, 0]).mean() + F.softplus(scores[:, 1:]).sum(1).mean())
    return model


@torch.no_grad()
def ranking(model: SkipGram, text: Tensor, seed: int = 0) -> float:
    """The share of words drawn at random that score below the true neighbour, over all pairs at most 2 apart."""
    centre, around = pairs_within(text, 2).unbind(1)
    draws = torch.Generator().manual_seed(seed)
    others = text[torch.randint(len(text), (len(centre), 20), generator=draws)]
    true, drawn = model(centre, around.unsqueeze(1)), model(centre, others)
    return ((drawn < true).double() + 0.5 * (drawn == true)).mean().item()
