"""`mereo predict`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.cli.options import PredictOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.cli.weights import load_weights, warn_of_unlike
from mereo.errors import UsageError, check_positive
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from mereo.models import SequenceModel


def run(words: list[str], command: str) -> None:
    """Print what images show, or how texts go on."""
    options = parse(PredictOptions, words, command)
    check_positive(top=options.top, batch_size=options.batch_size, length=options.length)
    from mereo.inference.predict import find_images, predict
    from mereo.models import SequenceModel

    paths = [] if options.prompt is not None and not options.images else find_images(options.images)
    model, source = load_weights(options.weights, options.device, ready=True, images=False)
    if options.weights is None:
        say(f"using {source}", file=sys.stderr)
    if isinstance(model, SequenceModel):
        _continue(model, options, paths, source)
        return
    warn_of_unlike(model, source, paths, chosen=options.weights is None)
    if options.prompt is not None:
        raise UsageError(f"prompt is {options.prompt!r}, and {source} classifies images; give images.")
    predictions = predict(model, paths, top=options.top, batch_size=options.batch_size, strict=options.strict)
    if options.json:
        document = {"weights": str(source), "predictions": [p.to_dict() for p in predictions]}
        say(json.dumps(document, indent=2))
        return
    rows = []
    for p in predictions:
        if "scores" not in p.values:  # not a classifier
            rows.append((p.path, ", ".join(f"{name} {value}" for name, value in p.values.items()), ""))
            continue
        best, *others = (f"{name} {score:.3f}" for name, score in zip(p.classes, p.scores, strict=True))
        rows.append((p.path, best, ", ".join(others)))
    print_table(("image", "class and score", "next"), rows)


LONGEST_PROMPT = 2**20
"""Bytes of a file that is continued; of a longer one, the last so many."""


def _continue(model: "SequenceModel", options: PredictOptions, paths: Sequence[Path], source: Path) -> None:
    """Print each text and what follows it."""
    from mereo.inference.continuation import continue_text

    prompts = {str(path): path.read_bytes()[-LONGEST_PROMPT:] for path in paths}
    if options.prompt is not None:
        prompts["prompt"] = options.prompt.encode()
    predictions = []
    for name, prompt in prompts.items():
        added = continue_text(model, prompt, options.length, temperature=options.temperature, seed=options.seed)
        texts = {"text": prompt.decode(errors="replace"), "continuation": added.decode(errors="replace")}
        predictions.append({"path": name, **texts})
    if options.json:
        say(json.dumps({"weights": str(source), "predictions": predictions}, indent=2))
        return
    for prediction in predictions:
        if len(predictions) > 1:
            say(f"{prediction['path']}:")
        whole = (prediction["text"] + prediction["continuation"]).expandtabs()
        say(whole)
