"""Access control: only requests of the page itself are served.

Other web sites can make a browser send requests to this machine, by DNS rebinding or as cross-site requests. Requests
whose Host or Origin is not this server are therefore refused.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response: the browser loads nothing from other origins and embeds the page in no other."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def refusal(headers: dict[str, list[str]], hosts: frozenset[str]) -> str | None:
    """Why a request is refused; None if it is not.

    Args:
        headers: all values by name in lower case.
        hosts: allowed values of Host.
    """
    if len(headers.get("host", [])) != 1 or headers["host"][0].lower() not in hosts:
        return "the Host of the request is not this server"
    origins = headers.get("origin", [])
    if any(origin.lower() not in {f"http://{host}" for host in hosts} for origin in origins):
        return "the request comes from another site"
    if any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", [])):
        return "the request comes from another site"
    return None


class Guard:
    """ASGI middleware that refuses requests of other sites and adds `HEADERS` to every response.

    Args:
        app: the application to protect.
        port: of the server.
    """

    def __init__(self, app: Application, port: int) -> None:
        self.app = app
        self.hosts = frozenset({f"{host}:{port}" for host in HOSTS} | (set(HOSTS) if port == 80 else set()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        reason = refusal(headers, self.hosts)
        if reason is not None:
            content = (reason + "\n").encode()
            kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
            await send_guarded({"type": "http.response.start", "status": 403, "headers": kind})
            await send_guarded({"type": "http.response.body", "body": content})
            return
        await self.app(scope, receive, send_guarded)
