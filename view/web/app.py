"""The routes: paths, headers and status codes. The only module that imports Flask.

All URLs in the page are relative, so that it works below any prefix: behind
``kubectl proxy`` it is ``/api/v1/namespaces/<namespace>/services/<service>/proxy/``.
"""

import gzip
import json
import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from flask import Flask, Response, render_template, request
from werkzeug.exceptions import HTTPException

from common.text import cut
from contract.errors import quote
from view.model import words
from view.model.reports import Freshness
from view.model.usage_history import SWITCHED_OFF, History
from view.web import figures, markup, pages
from view.web.feed import Feed
from view.web.filters import Filter
from view.web.hosts import Hosts
from view.web.links import Dashboard
from view.web.live import Live
from view.web.metrics import Metrics
from view.web.usage_table import MOST, UsageSelection, as_csv, in_order

_log = logging.getLogger(__name__)

INTERNAL = "internal error, see the log of the page"
TEXT = "text/plain; charset=utf-8"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        # The script cannot turn text into markup, not even by mistake.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_METHODS = ("GET", "HEAD")
_SMALLEST_COMPRESSED = 1400
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def create_app(
    live: Live,
    feed: Feed,
    *,
    hosts: Hosts,
    metrics: Metrics,
    dashboard: Dashboard = Dashboard(),  # noqa: B008 -- frozen
) -> Flask:
    """Build the WSGI application."""
    app = Flask(__name__)
    app.url_map.merge_slashes = False
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = None  # revalidated by ETag
    markup.prepare(app.jinja_env)
    rows = markup.Rows(app.jinja_env)

    @app.context_processor
    def ages() -> dict[str, Any]:
        fresh, now = live.freshness, live.now()
        age = round(max(now - fresh.at, 0)) if fresh.at else ""
        return {"fresh_age": age, "stale": fresh.stale, "as_of": figures.utc(fresh.at)}

    @app.before_request
    def check() -> Response | None:
        host = request.headers.get("Host", "")
        if not hosts.allow(host):
            given = host.rsplit(":", 1)[0]
            return _text(
                f"host {quote(host)} is not allowed; "
                f"to allow it, start the page with --allowed-host {quote(given)}",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        if request.method not in _METHODS:
            response = _text("this page is read-only", HTTPStatus.METHOD_NOT_ALLOWED)
            response.headers["Allow"] = ", ".join(_METHODS)
            return response
        return None

    @app.after_request
    def guard(response: Response) -> Response:
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        metrics.count_response(request.endpoint or "", response.status_code)
        return _compressed(response)

    @app.get("/")
    def nodes() -> str:
        page = pages.NodesPage(live.edition, Filter.parse(request.args))
        return render_template("index.html", changed=None, **_of_nodes(page, live, rows))

    @app.get("/rows")
    def changes() -> str:
        page = pages.NodesPage(live.edition, Filter.parse(request.args))
        changed = page.edition.changed(_number(request.args.get("since", "")))
        return render_template("rows.html", changed=changed, **_of_nodes(page, live, rows))

    @app.get("/pods/<namespace>/<name>")
    def pod(namespace: str, name: str) -> str | tuple[str, HTTPStatus]:
        # Read before the explanation: later changes are then announced again.
        edition = live.edition
        valid = _LABEL.fullmatch(namespace) and _LABEL.fullmatch(name)
        explanation = live.explain(namespace, name) if valid else None
        common = {"root": "../../", "edition": edition.number}
        if explanation is None:
            missing = live.not_ready() or "It does not exist, requests no GPU, or was deleted."
            title = f"Pod {namespace}/{name} not found"
            page = render_template("text.html", title=title, text=missing, **common)
            return page, HTTPStatus.NOT_FOUND
        return render_template(
            "pod.html",
            explanation=explanation,
            fit_groups=pages.fit_groups(explanation),
            most_fits=pages.MOST_FITS,
            used=any(
                (each.cores_used, each.memory_used) != (None, None)
                for each in explanation.pod.containers
            ),
            measured_at=figures.utc(live.measured_at),
            memory_block=pages.Blocks(edition.report.nodes).size(explanation.pod.node),
            dashboard=dashboard.url_of(explanation.pod),
            **common,
        )

    @app.get("/events")
    def events() -> Response:
        media = "text/event-stream"
        if request.method == "HEAD":
            return Response(content_type=media)
        seen = request.headers.get("Last-Event-ID") or request.args.get("since", "")
        stream = feed.open(_number(seen))
        if stream is None:
            response = _text("too many browsers are connected", HTTPStatus.SERVICE_UNAVAILABLE)
            response.headers["Retry-After"] = "30"
            return response
        # Passed through unchanged: the server iterates it asynchronously.
        headers = {"X-Accel-Buffering": "no"}
        return Response(
            cast("Any", stream), content_type=media, headers=headers, direct_passthrough=True
        )

    _usage(app, live)
    _technical(app, live.not_ready, metrics)
    _errors(app)
    return app


def _usage(app: Flask, live: Live) -> None:
    """Add the usage page and its CSV."""

    @app.get("/use")
    def use() -> str:
        edition, chosen = live.edition, UsageSelection.parse(request.args)
        return render_template(
            "use.html",
            history=live.history,
            switched_off=SWITCHED_OFF,
            rows=in_order(live.usage(chosen.by, chosen.namespace), chosen.sort),
            most=None if chosen.every else MOST,
            choice=chosen,
            namespaces=sorted({pod.namespace for pod in edition.report.pods} | {chosen.namespace}),
            measured_at=figures.utc(live.measured_at),
            report=edition.report,
            root="./",
            edition=edition.number,
        )

    @app.get("/use.csv")
    def table() -> Response:
        chosen = UsageSelection.parse(request.args)
        rows = in_order(live.usage(chosen.by, chosen.namespace), chosen.sort)
        text = as_csv(rows, live.history or History())
        response = Response(text, content_type="text/csv; charset=utf-8")
        response.headers["Content-Disposition"] = f'attachment; filename="gpus-by-{chosen.by}.csv"'
        return response


def _technical(app: Flask, not_ready: Callable[[], str], metrics: Metrics) -> None:
    """Add the routes for probes and Prometheus."""

    @app.get("/healthz")
    def healthz() -> Response:
        return _text("ok")

    @app.get("/readyz")
    def readyz() -> Response:
        why = not_ready()
        return _text(why, HTTPStatus.SERVICE_UNAVAILABLE) if why else _text("ok")

    @app.get("/metrics")
    def measured() -> Response:
        return Response(metrics.render(), content_type=metrics.content_type)


def _errors(app: Flask) -> None:
    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
        known = {HTTPStatus.NOT_FOUND: "no such page"}
        return _text(known.get(status, "invalid request"), status)

    @app.errorhandler(Exception)
    def fail(_error: Exception) -> Response:
        _log.exception("failed", extra={"path": cut(request.path, 253)})
        return _text(INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR)


def _of_nodes(page: pages.NodesPage, live: Live, rows: markup.Rows) -> dict[str, Any]:
    """Return the variables that both templates of nodes use."""
    rows.forget(page.edition)
    report = page.edition.report
    return {
        "root": "./",
        "edition": page.edition.number,
        "page": page,
        "filter": page.filter,
        "report": report,
        "blocks": pages.Blocks(report.nodes),
        "not_ready": live.not_ready(),
        "unknown": {gap.what for gap in report.gaps if gap.whole},
        "measured_at": figures.utc(live.measured_at),
        "row": lambda node: rows.row(node, page),
        "mark": lambda node, cards, key: rows.mark(node, cards, key, page),
    }


def contact(fresh: Freshness, now: float) -> str:
    """Return the age of the data for browsers, as JSON."""
    age = round(max(now - fresh.at, 0), 1) if fresh.at else None
    return json.dumps({"age": age, "stale": words.safe(fresh.stale)})


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


def _text(text: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(f"{text}\n", status, content_type=TEXT)


def _compressed(response: Response) -> Response:
    """Compress long responses: a page of a thousand nodes has several megabytes."""
    response.vary.add("Accept-Encoding")
    if (
        response.is_streamed
        or response.direct_passthrough
        or response.status_code != HTTPStatus.OK
        or not request.accept_encodings["gzip"]
        or len(response.get_data()) < _SMALLEST_COMPRESSED
    ):
        return response
    response.set_data(gzip.compress(response.get_data(), compresslevel=1, mtime=0))
    response.headers["Content-Encoding"] = "gzip"
    return response
