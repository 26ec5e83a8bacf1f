"""A bare webhook for comparison with ours: ``gunicorn bench.opponents:bare()``, stock TLS, HTTP."""

import json
from collections.abc import Mapping
from pathlib import Path

from flask import Flask, Response

OURS = "webhook"
BARE = "flask-gthread"

SERVED_BY: Mapping[str, str] = {
    OURS: "our application; gunicorn's asgi worker",
    BARE: "a bare Flask view; gunicorn's stock gthread, 8 threads",
}
"""The compared servers: name -> application and server."""

_RESPONSE = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }
).encode()


def command(name: str, folder: Path, port: int) -> list[str]:
    """Return module and arguments of a server on 127.0.0.1 with the certificates of *folder*."""
    cert, key = str(folder / "tls.crt"), str(folder / "tls.key")
    if name == OURS:
        options = f"webhook --host 127.0.0.1 --port {port} --drain-delay 0"
        return [*options.split(), "--cert", cert, "--key", key]
    options = (
        f"gunicorn --bind 127.0.0.1:{port} --worker-class gthread --threads 8"
        f" --keep-alive 120 --no-control-socket bench.opponents:bare()"
    )
    return [*options.split(), "--certfile", cert, "--keyfile", key]


def bare() -> Flask:
    """Return an application that allows every review without reading it."""
    app = Flask("bare", static_folder=None)
    app.add_url_rule(
        "/mutate/pods",
        view_func=lambda: Response(_RESPONSE, mimetype="application/json"),
        methods=["POST"],
    )
    app.add_url_rule("/readyz", endpoint="readyz", view_func=lambda: "ok\n")
    return app
