"""The web application: / for people, /metrics for Prometheus, /api/state for programs.

The page is made from the document of /api/state and from nothing else. Only reads. Where
Prometheus's containers ask, there is /metrics alone.
"""

import math
from datetime import datetime
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from jobs.derive import PHASES
from jobs.server.collector import RunsCollector
from jobs.server.guard import Guard
from jobs.server.ports import EXPORTER
from jobs.server.state import state
from jobs.server.store import Store

HERE = Path(__file__).parent
ABSENT = "-"
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""What every Prometheus reads; OpenMetrics would say the same and take half as long again."""


def build_app(store: Store, port: int) -> ASGIApp:
    """What answers on `port` of this machine's own address."""
    page = _page()
    style = (HERE / "status.css").read_text("utf-8")

    def document() -> dict[str, Any]:
        return store.look(lambda snapshot: state(snapshot, str(store.runs)))

    def home(_: Request) -> Response:
        return HTMLResponse(page.render(state=document(), phases=PHASES))

    def api_state(_: Request) -> Response:
        return JSONResponse(document())

    def stylesheet(_: Request) -> Response:
        return Response(style, media_type="text/css")

    routes = [
        Route("/", home),
        _metrics(store),
        Route("/api/state", api_state),
        Route("/status.css", stylesheet),
    ]
    return Guard(Starlette(routes=routes), port)


def build_metrics_app(store: Store, port: int, gateway: IPv4Interface) -> ASGIApp:
    """What answers on `port` of a gateway, to the containers of its network alone."""
    return Guard(
        Starlette(routes=[_metrics(store)]), port, (EXPORTER, str(gateway.ip)), gateway.network
    )


def _metrics(store: Store) -> Route:
    registry = CollectorRegistry()
    registry.register(RunsCollector(store))

    def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": TEXT_FORMAT})

    return Route("/metrics", metrics)


def _page() -> Any:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        auto_reload=False,  # the template of this process's own version
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"ms": _ms, "percent": _percent, "mb": _mb, "clock": _clock, "number": _number}
    environment.filters.update(filters)
    return environment.get_template("status.html")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: Any) -> str:
    return f"{value:,}" if _finite(value) else ABSENT


def _ms(seconds: Any) -> str:
    if not _finite(seconds):
        return ABSENT
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.0f}" if milliseconds >= 9.95 else f"{milliseconds:.1f}"


def _percent(ratio: Any) -> str:
    return f"{ratio * 100:.0f} %" if _finite(ratio) else ABSENT


def _mb(num_bytes: Any) -> str:
    return f"{num_bytes / 1e6:,.3g}" if _finite(num_bytes) else ABSENT


def _clock(wall_s: Any) -> str:
    return datetime.fromtimestamp(wall_s).strftime("%H:%M:%S") if _finite(wall_s) else ABSENT
