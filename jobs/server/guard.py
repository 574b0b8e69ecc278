"""Who may ask: only what was sent to this very address, and what a browser may do with answers.

A page of somebody else's can make a browser ask 127.0.0.1 under a name of its own (DNS rebinding):
its Host header gives it away.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "[::1]")
MISDIRECTED = 421
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Lets a request through where its one Host header is ours; adds HEADERS to every answer."""

    def __init__(
        self,
        app: ASGIApp,
        port: int,
        hosts: Sequence[str] = HOSTS,
        askers: IPv4Network | None = None,
    ) -> None:
        """`hosts` are our names at `port`; `askers`, from where alone one may ask (None: any)."""
        self._app = app
        self._hosts = [f"{host}:{port}" for host in hosts]
        self._askers = askers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._app if self._is_ours(scope) else self._refusal()
        await app(scope, receive, send_guarded)

    def _is_ours(self, scope: Scope) -> bool:
        if self._askers is not None and IPv4Address(scope["client"][0]) not in self._askers:
            return False
        asked = [value for name, value in scope["headers"] if name == b"host"]
        return len(asked) == 1 and asked[0].decode("latin-1").lower() in self._hosts

    def _refusal(self) -> ASGIApp:
        known = ", ".join(self._hosts)
        return PlainTextResponse(f"this is another host; ask for one of {known}\n", MISDIRECTED)
