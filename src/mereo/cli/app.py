"""`mereo app`."""

import sys
import webbrowser

from mereo.cli.options import AppOptions
from mereo.cli.parse import parse
from mereo.cli.weights import load_weights
from mereo.errors import UsageError
from mereo.runtime.printing import say

MOST = 8
"""Networks on a page."""


def run(words: list[str], command: str) -> None:
    """Serve the page until Ctrl-C."""
    options = parse(AppOptions, words, command)
    if len(options.weights) > MOST:
        raise UsageError(f"weights are {len(options.weights)}; the page is for at most {MOST} networks.")
    from mereo.export.libraries import require

    require("mereo app", ("starlette", "uvicorn"), "app")
    from mereo.app.networks import Networks
    from mereo.app.serving import bind, serve

    # An occupied port is reported before the networks are loaded.
    opened = bind(options.port)
    try:
        loaded = [load_weights(path, options.device, ready=True) for path in options.weights or (None,)]
        if not options.weights:
            say(f"using {loaded[0][1]}", file=sys.stderr)
        networks = Networks(
            [path for _, path in loaded], [model for model, _ in loaded], options.data, options.data_root
        )
        for network in networks.networks:
            if network.data is None:
                say(f"{network.name}: no test images: {network.reason}", file=sys.stderr)
    except BaseException:
        opened.close()
        raise

    def ready(address: str) -> None:
        say(f"{address}  (Ctrl-C ends it)")
        sys.stdout.flush()
        if options.open:
            webbrowser.open(address)

    serve(networks, opened, ready)
    say("stopped.", file=sys.stderr)
