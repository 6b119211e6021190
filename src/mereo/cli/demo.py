"""`mereo demo`: one command from nothing to a trained, measured, explained capsule network."""

from mereo.cli.options import DemoOptions
from mereo.cli.parse import parse
from mereo.errors import check_positive
from mereo.runtime.printing import say

SHOWN = 6


def run(words: list[str], command: str) -> None:
    """Train MSPCaps-T on the digits, print the results, draw an explanation."""
    options = parse(DemoOptions, words, command)
    if options.epochs is not None:
        check_positive(epochs=options.epochs)
    from mereo.training.recipes import apply_recipe

    config = apply_recipe("digits_demo").replace(seed=options.seed, device=options.device, output=options.output)
    if options.epochs is not None:
        config = config.replace(epochs=options.epochs)
    say("MSPCaps-T on 1,797 handwritten digits, upscaled to 32x32. Two to three minutes on two CPU cores.")

    import torch

    from mereo import api
    from mereo.data import load_split
    from mereo.explain import draw_explanation
    from mereo.training.results import summary

    result = api.train(config)
    test = load_split("digits", img_size=result.model.image_shape[1:], in_chans=result.model.image_shape[0])
    # One image of each of the first classes, so that the picture shows different digits.
    labels = test.batch(torch.arange(len(test))).labels
    chosen = [int((labels == digit).nonzero()[0]) for digit in range(SHOWN)]
    batch = test.batch(torch.tensor(chosen))
    device = next(result.model.parameters()).device
    picture = draw_explanation(
        result.model,
        batch.images.to(device),
        result.folder.path / "explanation.png",
        titles=[f"test image {i}" for i in chosen],
        true_labels=batch.labels.tolist(),
    )
    summary(result, picture)
