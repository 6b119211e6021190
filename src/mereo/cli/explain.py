"""`mereo explain`."""

import sys

from mereo.cli.options import ExplainOptions
from mereo.cli.parse import parse
from mereo.cli.show import new_folder
from mereo.errors import UsageError
from mereo.runtime.printing import say


def run(words: list[str], command: str) -> None:
    """Write explanations of images and print their paths."""
    options = parse(ExplainOptions, words, command)
    from mereo.api.explanation import BATCH, check, write, write_saliency
    from mereo.api.networks import check_reads, load_weights
    from mereo.cli.weights import split_weights, warn_if_out_of_distribution
    from mereo.inference.predict import find_files, find_images

    check(options.out, options.only, options.keep)
    if options.layers and not options.method:
        raise UsageError(f"layers is {' '.join(options.layers)}, which is of --method; name a method too.")
    given, weights = split_weights(options.images, options.weights, command)
    find_files(given)  # before weights are read, so that a missing file is named at once
    trained = load_weights(weights, options.device, ready=True, images=False)
    check_reads(
        *trained, ("images", "points", "sequences", *(("regions",) if trained.model.output_kind == "pointers" else ()))
    )
    of_images = trained.model.input_kind == "images"
    paths = find_images(given) if of_images else find_files(given)
    if weights is None:
        say(f"using {trained.source}", file=sys.stderr)
    if of_images:
        warn_if_out_of_distribution(trained.model, trained.source, paths, chosen=weights is None)
    out = options.out or new_folder("explanation")
    if options.method:
        layers = options.layers or None
        path, lines = write_saliency(
            trained, paths, out, options.method, layers, options.only, target=options.target, strict=options.strict
        )
        say("\n".join([f"saliency: {path}", *lines]))
        return
    written = write(
        trained, paths, out, options.only, target=options.target, keep=options.keep, strict=options.strict, quiet=False
    )
    for kind, files in written.items():
        if len(files) > BATCH:
            say(f"{kind}: {files[0].parent}/ ({len(files)} files)")
        else:
            say("\n".join(f"{kind}: {path}" for path in files))
