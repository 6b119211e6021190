"""The web application: the files of the page, and an API that answers in JSON."""

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
from mereo.app.guard import Application, Guard
from mereo.app.prediction import occlusion, predict_image
from mereo.app.request import number, parse_request
from mereo.app.session import Session
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
"""The files of the page by URL path: package, name and media type. Requests open no other file."""


async def _body(request: Request, most: int) -> bytes:
    """The body of a request; UsageError as soon as it exceeds `most` bytes."""
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


def _query_number(request: Request, name: str, default: int = 0) -> int:
    """An integer of the query string of a request."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{name} is {text[:40]!r}; it must be a whole number.")
    return int(text)


def _route(path: str, handler: Callable[[Request], Any], method: str = "GET") -> Route:
    """A route whose answers, and errors, are JSON."""

    async def respond(request: Request) -> Response:
        try:
            return JSONResponse(await handler(request))
        except (UsageError, MereoError) as error:
            return JSONResponse({"error": runs.error_line(error)}, 400)
        except ClientDisconnect:
            return Response(status_code=400)
        except MemoryError:
            return JSONResponse({"error": "out of memory; try a smaller image."}, 500)
        except Exception as error:
            # Any other failure is reported to the page, and the server continues.
            return JSONResponse({"error": f"failed: {type(error).__name__}: {runs.error_line(error)}"}, 500)

    return Route(path, respond, methods=[method])


def _file(path: str, package: str, name: str, kind: str) -> Route:
    """The route of a file of the page."""
    content = (files(package) / name).read_bytes()

    async def respond(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(path, respond, methods=["GET"])


def make_app(session: Session, port: int) -> Application:
    """The web application of a session, for a server on this port."""

    def locked(function: Callable[..., Any], *arguments: Any) -> Any:
        with session.lock:
            return function(*arguments)

    async def work(function: Callable[..., Any], *arguments: Any) -> Any:
        return await run_in_threadpool(partial(locked, function, *arguments))

    async def models(request: Request) -> Any:
        return await work(runs.describe_models, session)

    async def upload(request: Request) -> Any:
        return {"image": await work(session.upload, await _body(request, LONGEST_UPLOAD))}

    async def test_images(request: Request) -> Any:
        model, start = _query_number(request, "model"), _query_number(request, "start")
        return await work(runs.list_test_images, session, model, start)

    async def curves(request: Request) -> Any:
        return await work(runs.curves, session, _query_number(request, "model"))

    async def errors(request: Request) -> Any:
        # It takes the lock itself, one batch at a time.
        return await run_in_threadpool(runs.errors, session, _query_number(request, "model"))

    async def on_image(function: Callable[..., Any], request: Request) -> Any:
        content = await _json(request)
        wanted = parse_request(content)
        return await work(function, session, number(content, "model", 0), wanted)

    async def predict(request: Request) -> Any:
        return await on_image(predict_image, request)

    async def occlude(request: Request) -> Any:
        return await on_image(occlusion, request)

    routes = [_file(path, *where) for path, where in PARTS.items()]
    routes += [
        _route("/api/models", models),
        _route("/api/test_images", test_images),
        _route("/api/curves", curves),
        _route("/api/errors", errors),
        _route("/api/images", upload, "POST"),
        _route("/api/predict", predict, "POST"),
        _route("/api/occlusion", occlude, "POST"),
    ]
    return Guard(Starlette(routes=routes), port)
