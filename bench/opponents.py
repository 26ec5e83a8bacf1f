"""Opponents of the webhook: ``python -m bench.opponents NAME PORT CERT KEY WORKERS``.

A bare view answers "allowed" and looks at nothing. Stock workers are gunicorn's own, with
gunicorn's own TLS and HTTP.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flask import Flask, Response
from gunicorn.app.base import BaseApplication

from common.logs import configure
from contract.names import Names
from contract.stamps import Stamper
from webhook.admission.reviewer import Reviewer
from webhook.handler import Handler
from webhook.server.app import create_app

OURS = "webhook"
BARE = "flask-gthread"
GO = "go"

SERVED_BY: Mapping[str, str] = {
    OURS: "our application; gunicorn's asgi worker",
    BARE: "a bare Flask view; gunicorn's stock gthread, 8 threads",
    "flask-gevent": "a bare Flask view; gunicorn's stock gevent",
    "webhook-gthread": "our application; gunicorn's stock gthread, 8 threads",
    GO: "a bare Go handler; net/http",
}
"""The servers of a comparison: name to application and server."""

_ANSWER = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }
).encode()

_GO_SOURCE = """package main

import (
	"net/http"
	"os"
)

func main() {
	answer := []byte(`%s`)
	http.HandleFunc("/mutate/pods", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
	})
	http.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("ok\\n"))
	})
	panic(http.ListenAndServeTLS("127.0.0.1:"+os.Args[1], os.Args[2], os.Args[3], nil))
}
"""


class Stock(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """An application on one of gunicorn's own workers."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        """Hand the options to gunicorn."""
        for key, value in self._options.items():
            if key in self.cfg.settings:
                self.cfg.set(key, value)

    def load(self) -> Any:
        """Make the application; runs in the worker."""
        return _bare() if self._name.startswith("flask") else _ours()


def missing() -> dict[str, str]:
    """Return the servers that cannot be compared here, and why."""
    found = {}
    if find_spec("gevent") is None:
        found["flask-gevent"] = "gevent is not installed"
    if shutil.which("go") is None:
        found[GO] = "there is no Go compiler on PATH"
    return found


def command(name: str, folder: Path, port: int, workers: int) -> list[str]:
    """Return the command that serves an opponent.

    Args:
        name: of an opponent.
        folder: with certificates; gets what has to be built.
        port: on 127.0.0.1.
        workers: processes.
    """
    files = [str(folder / "tls.crt"), str(folder / "tls.key")]
    if name == GO:
        return ["env", f"GOMAXPROCS={workers}", str(_build_go(folder)), str(port), *files]
    return [sys.executable, "-m", "bench.opponents", name, str(port), *files, str(workers)]


def _build_go(folder: Path) -> Path:
    source, binary = folder / "bare.go", folder / "bare-go"
    if not binary.exists():
        source.write_text(_GO_SOURCE % _ANSWER.decode(), encoding="ascii")
        environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOCACHE": str(folder / "gocache")}
        build = ["go", "build", "-o", str(binary), str(source)]
        subprocess.run(build, check=True, cwd=folder, env=environment)  # noqa: S603 - our own
    return binary


def _bare() -> Flask:
    app = Flask("bare", static_folder=None)
    app.add_url_rule(
        "/mutate/pods",
        view_func=lambda: Response(_ANSWER, mimetype="application/json"),
        methods=["POST"],
    )
    app.add_url_rule("/readyz", endpoint="readyz", view_func=lambda: "ok\n")
    return app


def _ours() -> Flask:
    stamp = Stamper(clock=time.time_ns, writer="bench").next
    return create_app(Handler(Reviewer(names=Names(), stamp=stamp)))


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM: NAME PORT CERT KEY WORKERS."""
    name, port, cert, key, workers = arguments
    configure()
    options = {
        "bind": f"127.0.0.1:{port}",
        "workers": int(workers),
        "worker_class": name.rpartition("-")[2],
        "threads": 8,
        "keepalive": 120,
        "certfile": cert,
        "keyfile": key,
        "control_socket_disable": True,
    }
    Stock(name, options).run()


if __name__ == "__main__":
    main(sys.argv[1:])
