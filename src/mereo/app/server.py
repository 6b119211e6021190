"""The server of the page: a few routes, each with an answer in JSON."""

import json
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mereo.app import runs
from mereo.app.answers import answer, hidden_places
from mereo.app.guard import Application, Guard
from mereo.app.networks import Networks
from mereo.app.question import number, read_question
from mereo.errors import MereoError, UsageError

LONGEST_UPLOAD = 2**25
"""Bytes of an uploaded image."""
LONGEST_REQUEST = 2**16
"""Bytes of any other request."""
PARTS = {
    "/": ("mereo.app", "page.html", "text/html"),
    "/page.css": ("mereo.app", "page.css", "text/css"),
    "/page.js": ("mereo.app", "page.js", "text/javascript"),
    "/run.js": ("mereo.app", "run.js", "text/javascript"),
    "/giving.css": ("mereo.export.page", "giving.css", "text/css"),
    "/giving.js": ("mereo.export.page", "giving.js", "text/javascript"),
    "/tree.css": ("mereo.explain.trees", "page.css", "text/css"),
    "/tree.js": ("mereo.explain.trees", "page.js", "text/javascript"),
}
"""The files of the page: package, name and type. No other file is ever opened for a request."""


async def _body(request: Request, most: int) -> bytes:
    """The body of a request; UsageError for a longer one, before it is read to its end."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > most:
            raise UsageError(f"the request is longer than {most:,} bytes.")
    return bytes(content)


async def _json(request: Request) -> Any:
    try:
        return json.loads(await _body(request, LONGEST_REQUEST))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError("the request is not valid JSON.") from error


def _numbered(request: Request, name: str, default: int = 0) -> int:
    """A whole number in the address of a request."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{name} is {text[:40]!r}; it must be a whole number.")
    return int(text)


def make_app(networks: Networks, port: int) -> Application:
    """The application that serves a networks on a port of this machine."""

    def locked(function: Callable[..., Any], *arguments: Any) -> Any:
        with networks.lock:
            return function(*arguments)

    async def work(function: Callable[..., Any], *arguments: Any, alone: bool = True) -> Any:
        call = partial(locked, function, *arguments) if alone else partial(function, *arguments)
        return await run_in_threadpool(call)

    def route(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            try:
                return JSONResponse(await handler(request))
            except (UsageError, MereoError) as error:
                return JSONResponse({"error": runs.reason(error)}, 400)
            except ClientDisconnect:
                return Response(status_code=400)
            except MemoryError:
                return JSONResponse({"error": "out of memory; give a smaller image."}, 500)
            except Exception as error:
                # Whatever fails, the page gets a line and the server goes on.
                return JSONResponse({"error": f"failed: {type(error).__name__}: {runs.reason(error)}"}, 500)

        return respond

    async def models(request: Request) -> Any:
        return await work(runs.facts, networks)

    async def upload(request: Request) -> Any:
        content = await _body(request, LONGEST_UPLOAD)
        return {"image": await work(networks.upload, content)}

    async def ask(request: Request) -> Any:
        given = await _json(request)
        question = read_question(given)
        return await work(answer, networks, number(given, "model", 0), question)

    async def hide(request: Request) -> Any:
        given = await _json(request)
        question = read_question(given)
        return await work(hidden_places, networks, number(given, "model", 0), question)

    async def test(request: Request) -> Any:
        return await work(runs.images_page, networks, _numbered(request, "model"), _numbered(request, "start"))

    async def curves(request: Request) -> Any:
        return await work(runs.curves, networks, _numbered(request, "model"))

    async def errors(request: Request) -> Any:
        # It takes the lock itself, for a batch at a time.
        return await work(runs.errors, networks, _numbered(request, "model"), alone=False)

    def part(package: str, name: str, kind: str) -> Callable[[Request], Any]:
        content = (files(package) / name).read_bytes()

        async def respond(request: Request) -> Response:
            return Response(content, media_type=kind)

        return respond

    routes = [Route(path, part(*where), methods=["GET"]) for path, where in PARTS.items()]
    routes += [
        Route("/api/models", route(models), methods=["GET"]),
        Route("/api/test", route(test), methods=["GET"]),
        Route("/api/curves", route(curves), methods=["GET"]),
        Route("/api/errors", route(errors), methods=["GET"]),
        Route("/api/images", route(upload), methods=["POST"]),
        Route("/api/ask", route(ask), methods=["POST"]),
        Route("/api/hide", route(hide), methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), port)
