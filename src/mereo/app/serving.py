"""Runs the server on the loopback address until it is stopped."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mereo.app.session import Session
from mereo.errors import MereoError, UsageError

ADDRESS = "127.0.0.1"
_GRACE = 2
"""Seconds to finish requests when the server is stopped."""


def bind(port: int) -> socket.socket:
    """A socket that listens on a port of this machine only; 0 chooses a free port."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port is {port}; it must be from 0 to 65535, where 0 chooses a free one.")
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((ADDRESS, port))
        opened.listen(128)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port is {port}, which is in use; give another with --port, or 0 for a free one."
            ) from error
        if error.errno == errno.EACCES:
            raise UsageError(
                f"port is {port}, which needs rights that you do not have; give one above 1023."
            ) from error
        raise MereoError(f"port {port} of {ADDRESS} cannot be opened: {error.strerror}.") from error
    return opened


def _server(session: Session, opened: socket.socket) -> Any:
    import uvicorn

    from mereo.app.server import make_app

    app = make_app(session, opened.getsockname()[1])
    return uvicorn.Server(
        uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
            date_header=False, proxy_headers=False, timeout_graceful_shutdown=_GRACE, limit_concurrency=64,
        )
    )  # fmt: skip


def serve(session: Session, opened: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or a signal to end.

    Args:
        session: the networks to serve.
        opened: from `bind`.
        ready: called with the URL of the page.
    """
    server = _server(session, opened)
    try:
        ready(f"http://{ADDRESS}:{opened.getsockname()[1]}/")
        server.run(sockets=[opened])
    except KeyboardInterrupt:
        # uvicorn raises it again after a graceful shutdown.
        pass
    finally:
        opened.close()


@contextmanager
def serving(session: Session, port: int = 0) -> Iterator[str]:
    """Serve in a thread inside the block, for notebooks and tests; it yields the URL of the page."""
    opened = bind(port)
    server = _server(session, opened)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    try:
        yield f"http://{ADDRESS}:{opened.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(30)
        opened.close()
