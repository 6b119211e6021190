"""`mereo app`."""

import sys
import webbrowser

from mereo.cli.options import AppOptions
from mereo.cli.parse import parse
from mereo.errors import UsageError
from mereo.runtime.printing import say

MOST = 8
"""Largest number of networks on the page."""


def run(words: list[str], command: str) -> None:
    """Serve the page until Ctrl-C."""
    options = parse(AppOptions, words, command)
    if len(options.weights) > MOST:
        raise UsageError(f"weights are {len(options.weights)} networks; the page shows at most {MOST}.")
    from mereo.export.libraries import require

    require("mereo app", ("starlette", "uvicorn"), "app")
    from mereo.api.networks import load_weights
    from mereo.app.serving import bind, serve
    from mereo.app.session import Session

    # An occupied port is reported before the networks are loaded.
    opened = bind(options.port)
    try:
        loaded = [load_weights(path, options.device, ready=True) for path in options.weights or (None,)]
        if not options.weights:
            say(f"using {loaded[0][1]}", file=sys.stderr)
        session = Session([path for _, path in loaded], [model for model, _ in loaded], options.data, options.data_root)
        for served in session.models:
            if served.data is None:
                say(f"{served.name}: no test images: {served.reason}", file=sys.stderr)
    except BaseException:
        opened.close()
        raise

    def ready(address: str) -> None:
        say(f"{address}  (Ctrl-C ends it)")
        sys.stdout.flush()
        if options.open:
            webbrowser.open(address)

    serve(session, opened, ready)
    say("stopped.", file=sys.stderr)
