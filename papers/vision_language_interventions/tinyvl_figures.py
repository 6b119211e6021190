"""TinyVL without an intervention: captions by seeds, and answers to questions of the bundled network."""

from typing import Any

import mereo
from mereo.data.captions import NEGATIVES, test_set
from mereo.tasks.captions import evaluate_captions
from papers.common.settings import Settings
from papers.vision_language_interventions.measures import SEED, caption_figures
from papers.vision_language_interventions.networks import STEPS, trained

IMAGES = 600


def run(settings: Settings) -> dict[str, Any]:
    """A table of captions by seed and by how often pairs are together, and one of answers."""
    count = settings.images or IMAGES
    models = {f"seed {seed}": trained(settings, "plain", seed, STEPS) for seed in range(settings.seeds)}
    bundled = mereo.load("tinyvl.captions")
    captions = [
        {"pairs together": together, "network": name, **caption_figures([model], together, count)}
        for together in (0.9, 0.0)
        for name, model in {**models, "bundled": bundled}.items()
    ]
    answers = []
    for together in (0.9, 0.0):
        for negatives in NEGATIVES:
            found = evaluate_captions(bundled, test_set(count, together, SEED, negatives=negatives))
            shown = {name: round(100 * found[name], 1) for name in ("answers", "precision", "yes_recall", "f1", "yes")}
            answers.append({"pairs together": together, "negatives": negatives, **shown})
    return {"tables": {"Captions": captions, "Answers of the bundled network": answers}, "notes": [], "pictures": []}
