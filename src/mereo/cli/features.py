"""`mereo embed` and `mereo search`."""

import sys
from pathlib import Path

from mereo.cli.options import EmbedOptions, SearchOptions
from mereo.cli.parse import parse
from mereo.cli.show import new_folder, print_table
from mereo.errors import UsageError
from mereo.runtime.collection import uncollected
from mereo.runtime.printing import say

MOST_SHOWN = 20
"""Queries that are printed."""


def run(words: list[str], command: str) -> None:
    """Write features, or the images most similar to others."""
    options = parse(EmbedOptions, words, command) if command == "embed" else parse(SearchOptions, words, command)
    with uncollected():
        from mereo import api
        from mereo.api.networks import load_weights
        from mereo.cli.weights import split_weights
        from mereo.inference.predict import find_images
    given, weights = split_weights(options.images, options.weights, command)
    if isinstance(options, SearchOptions) and len(given) < 2:
        raise UsageError("images has no gallery or no query; write mereo search RUN GALLERY QUERY.")
    for each in given:  # before weights are read, so that a missing file is named at once
        find_images([each])
    trained = load_weights(weights, options.device, ready=True)
    if weights is None:
        say(f"using {trained.source}", file=sys.stderr)
    size, strict = options.batch_size, options.strict
    if isinstance(options, EmbedOptions):
        target = options.out or Path("vectors.npy")
        embedded = api.embed(trained, given, out=target, batch_size=size, strict=strict, quiet=False)
        say(f"{len(embedded.images):,} images, {embedded.vectors.shape[1]:,} features each")
        written = embedded.written
    else:
        result = api.search(
            trained, given[0], given[1:], top=options.top, out=options.out or new_folder("search"), batch_size=size,
            strict=strict, quiet=False,
        )  # fmt: skip
        found, written = result.found, result.written
        rows = [
            (query, rank, image, f"{value:.4f}")
            for query, images, values in found[:MOST_SHOWN]
            for rank, (image, value) in enumerate(zip(images, values, strict=True), 1)
        ]
        print_table(("query", "rank", "image", "similarity"), rows)
    for path in written:
        say(f"written: {path}", file=sys.stderr)
