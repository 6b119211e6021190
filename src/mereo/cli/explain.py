"""`mereo explain`."""

import sys

from mereo.cli.options import ExplainOptions
from mereo.cli.parse import parse
from mereo.cli.weights import load_weights


def run(words: list[str], command: str) -> None:
    """Draw what a network saw in images."""
    options = parse(ExplainOptions, words, command)
    from mereo.explain import draw_explanation
    from mereo.inference.predict import find_images, read_images

    paths = find_images(options.images)
    model, source = load_weights(options.weights, options.device)
    if options.weights is None:
        print(f"using {source}", file=sys.stderr)
    good, images = read_images(paths, model, strict=options.strict)
    device = next(model.parameters()).device
    picture = draw_explanation(model, images.to(device), options.out, titles=[p.name for p in good])
    print(f"picture: {picture}")
