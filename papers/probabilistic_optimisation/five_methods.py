"""Five methods around language models, each on a small task that shows what it does; the paper has no figures.

Sub-word merges by three criteria, biases by distance beyond the trained length, caches of few bits, attention to blocks
at random distances, and the cross-entropy method for the settings of word vectors.
"""

from collections.abc import Mapping
from statistics import mean
from typing import Any

import torch

from mereo.data import TokenWindows
from mereo.pictures import new_figure, save_figure
from papers.common.measures import means
from papers.common.settings import Settings
from papers.probabilistic_optimisation import text_attention, words
from papers.probabilistic_optimisation.text_attention import BIASES, LAWS

PARTS = ("merges", "distances", "cache", "dropping", "search")
CONTEXTS, CACHE_CONTEXT = (64, 128, 256, 512), 256
"""Bytes read before the last of them are scored, of which the first is trained; bytes of the windows of the cache."""
WINDOWS, TESTED, BATCH, PAGE = 6400, 64, 16, 2048
"""Windows of the first length to train on; windows to test on; windows of a step; bytes of a window of words."""
CACHES: dict[str, tuple[int, ...] | None] = {
    "exact": None,
    "16, 8": (16, 8),
    "16, 4": (16, 4),
    "16, 2": (16, 2),
    "16, 8, 4": (16, 8, 4),
    "16, 8, 4, 2": (16, 8, 4, 2),
}
BLOCK, GROUP = 32, 32
"""Tokens of a block of a cache, and numbers of a group."""
ROUNDS = 200
"""Draws of the distances whose blocks take part."""
WORDS, VOCABULARY = 300, 160
"""Most frequent words of the text that are written in units, and number of units."""
CORPUS, SEARCHES = 20_000, 50
"""Words of the text that vectors are trained and tested on, and searches for their settings."""
SPACE: Mapping[str, tuple[Any, ...]] = {
    "window": (1, 2, 5),
    "dim": (4, 16, 64),
    "negatives": (1, 4),
    "rate": (0.001, 0.01, 0.1),
}
PICTURE = "five_methods.png"
DISTANCES = "Bits per byte of the same bytes, trained on the shortest windows"
QUANTISED = "Bits per byte and size of caches"
DROPPED = "Attention to random blocks against attention to all"
Tables = dict[str, list[dict[str, Any]]]


def run(settings: Settings) -> dict[str, Any]:
    """Tables of the chosen parts, and a picture of the biases, the caches and the dropped blocks."""
    parts = settings.chosen(PARTS)
    tables: Tables = {}
    if "merges" in parts or "search" in parts:
        train, test = (words.words_of(each) for each in _texts(settings, PAGE, WINDOWS * CONTEXTS[0] // PAGE))
        if "merges" in parts:
            tables["First merges of five words"] = words.worked_merges()
            tables["L of five words, greedy and best"] = words.greedy_and_best()
            tables["Frequent words of the text in units"] = words.gains_on_text(train, test, WORDS, VOCABULARY)
        if "search" in parts:
            tables["Settings of word vectors"] = words.search_word_vectors(
                train[:CORPUS], test[:CORPUS], SPACE, SEARCHES, settings.say
            )
    if "distances" in parts:
        tables[DISTANCES] = _distances(settings)
    if "cache" in parts or "dropping" in parts:
        shown, seen = _texts(settings, CACHE_CONTEXT, 2 * WINDOWS * CONTEXTS[0] // CACHE_CONTEXT)
        models = [
            text_attention.trained({}, shown, settings, settings.batch_size or BATCH, seed)
            for seed in range(settings.seeds)
        ]
        if "cache" in parts:
            tables[QUANTISED] = [
                {"bits": name} | means([text_attention.with_cache(model, seen, bits, BLOCK, GROUP) for model in models])
                for name, bits in CACHES.items()
            ]
        if "dropping" in parts:
            heads = [text_attention.heads_of(model, seen) for model in models]
            tables[DROPPED] = [
                {"law": name, "rescaled": "yes" if rescale else "no"}
                | means([text_attention.dropped(each, *law, ROUNDS, rescale=rescale) for each in heads])
                for name, law in LAWS.items()
                for rescale in (False, True)
            ]
    _draw(tables, settings)
    return {
        "tables": tables,
        "notes": [f"{text_attention.DEPTH} layers of 64, Adam at {text_attention.RATE:g}; {settings.seeds} seeds."],
        "pictures": [PICTURE],
        "data": str(settings.data),
    }


def _texts(settings: Settings, length: int, windows: int = WINDOWS) -> tuple[TokenWindows, TokenWindows]:
    """Windows for training and testing, spread over the text."""
    train, whole = settings.windows(length, windows)
    count = settings.images or TESTED
    return train, whole.subset(torch.arange(count) * ((len(whole) - 1) // count))


def _distances(settings: Settings) -> list[dict[str, Any]]:
    """Bits per byte of the same bytes behind ever more bytes, of networks that were trained on the first number."""
    train, _ = _texts(settings, CONTEXTS[0])
    _, longest = _texts(settings, CONTEXTS[-1])
    tokens = longest.batch(torch.arange(len(longest))).tokens
    assert tokens is not None
    scored, rows = CONTEXTS[0] // 2, []
    for name, positions in BIASES.items():
        models = [
            text_attention.trained(positions, train, settings, settings.batch_size or BATCH, seed)
            for seed in range(settings.seeds)
        ]
        row: dict[str, Any] = {"positions": name}
        for context in CONTEXTS:
            found = [text_attention.bits_of_the_last(model, tokens, scored, context) for model in models]
            row[f"{context} bytes"] = mean(found)
        rows.append(row)
    return rows


def _draw(tables: Tables, settings: Settings) -> None:
    """A panel for each of the three tables of attention that was made."""
    made = [title for title in (DISTANCES, QUANTISED, DROPPED) if title in tables] or [next(iter(tables))]
    figure = new_figure(4.2 * len(made), 3.2)
    panels = figure.subplots(1, len(made), squeeze=False)[0]
    for axes, title in zip(panels, made, strict=True):
        rows = tables[title]
        axes.set_title(title, fontsize=8, loc="left")
        axes.grid(alpha=0.3)
        if title == DISTANCES:
            for row in rows:
                axes.plot(CONTEXTS, [row[f"{c} bytes"] for c in CONTEXTS], marker="o", label=row["positions"])
            axes.set(xscale="log", xticks=CONTEXTS, xticklabels=CONTEXTS, xlabel="bytes read", ylabel="bits per byte")
            axes.minorticks_off()
            axes.legend(frameon=False, fontsize=7)
        elif title == QUANTISED:
            for row in rows:
                axes.plot(row["bytes a token and layer"], row["bits per byte"], "o", label=row["bits"])
            axes.set(xlabel="bytes of the cache, a token and layer", ylabel="bits per byte")
            axes.legend(frameon=False, fontsize=7)
        elif title == DROPPED:
            for rescaled, mark in (("no", "o"), ("yes", "^")):
                chosen = [row for row in rows if row["rescaled"] == rescaled]
                label = "rescaled" if rescaled == "yes" else "as drawn"
                axes.plot([r["bias %"] for r in chosen], [r["deviation %"] for r in chosen], mark, label=label)
            axes.set(xlabel="bias, % of the output", ylabel="deviation, % of the output")
            axes.legend(frameon=False, fontsize=7)
        else:
            name, *_, value = rows[0]
            axes.barh([str(row[name]) for row in rows], [float(row[value]) for row in rows])
            axes.set_xlabel(value)
    save_figure(figure, settings.folder / PICTURE)
