"""`mereo app`."""

import sys
import webbrowser
from pathlib import Path

from mereo.api.networks import READY, RUNS
from mereo.cli.options import AppOptions
from mereo.cli.parse import parse
from mereo.errors import MereoError, UsageError
from mereo.runtime.printing import say


def run(words: list[str], command: str) -> None:
    """Serve the page until Ctrl-C."""
    options = parse(AppOptions, words, command)
    from mereo.runtime.libraries import require

    require("mereo app", ("gradio", "fastapi"), "app")
    from mereo.app import Networks, serve
    from mereo.runtime.device import choose_device

    sources = options.weights or _networks_here()
    networks = Networks(sources, choose_device(options.device), options.data, options.data_root)
    for source in options.weights:  # what cannot be shown is reported before the page is served
        networks.model(str(source))

    def ready(address: str) -> None:
        say(f"{address}  (Ctrl-C ends it)")
        if options.open:
            webbrowser.open(address)

    serve(networks, options.port, ready)
    say("stopped.", file=sys.stderr)


def _may_be_shown(weights: Path) -> bool:
    """Whether a weight file is of a network and a task that the page shows, as far as its header tells."""
    from mereo.models import get_model_entry
    from mereo.models.weights import read_metadata
    from mereo.tasks.base import task_for

    try:
        metadata = read_metadata(weights)
        module = get_model_entry(str(metadata.get("model"))).module
        task = task_for(module, str(metadata.get("task", "classification")))
    except (MereoError, UsageError):
        return False
    return module.input_kind == "images" and task(("class",)).answers_each


def _networks_here() -> list[Path]:
    """The runs that can be shown, the newest first, and the bundled weights."""
    from mereo.models.pretrained import list_pretrained, pretrained_path

    found = sorted(RUNS.glob("*/weights/best.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
    runs = [path for path in found if _may_be_shown(path)]
    shown = [name for name in list_pretrained() if _may_be_shown(pretrained_path(name))]
    bundled = sorted(shown, key=lambda name: name != READY)
    return [*(path.parents[1] for path in runs), *map(Path, bundled)]
