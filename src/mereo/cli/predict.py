"""`mereo predict`."""

import json
import sys

from mereo.cli.options import PredictOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table, say
from mereo.cli.weights import load_weights
from mereo.errors import check_positive


def run(words: list[str], command: str) -> None:
    """Print what images show."""
    options = parse(PredictOptions, words, command)
    check_positive(top=options.top, batch_size=options.batch_size)
    from mereo.inference.predict import find_images, predict

    paths = find_images(options.images)
    model, source = load_weights(options.weights, options.device, ready=True)
    if options.weights is None:
        say(f"using {source}", file=sys.stderr)
    predictions = predict(model, paths, top=options.top, batch_size=options.batch_size, strict=options.strict)
    if options.json:
        document = {"weights": str(source), "predictions": [p.to_dict() for p in predictions]}
        print(json.dumps(document, indent=2))
        return
    rows = []
    for p in predictions:
        if "scores" not in p.values:  # not a classifier
            rows.append((p.path, ", ".join(f"{name} {value}" for name, value in p.values.items()), ""))
            continue
        best, *others = (f"{name} {score:.3f}" for name, score in zip(p.classes, p.scores, strict=True))
        rows.append((p.path, best, ", ".join(others)))
    print_table(("image", "class and score", "next"), rows)
