"""`mereo reproduce`."""

from importlib import import_module

from mereo.cli.comparison_options import ReproduceOptions
from mereo.cli.parse import parse
from mereo.errors import MereoError
from mereo.runtime.clone import ELSEWHERE, find_papers


def run(words: list[str], command: str) -> None:
    """Run a study or an experiment of the papers, or list them."""
    options = parse(ReproduceOptions, words, command)
    if find_papers() is None:
        raise MereoError(ELSEWHERE)
    import_module("papers.reproduce").reproduce(options)
