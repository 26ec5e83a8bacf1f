"""What the webhook is compared with: ``python -m bench.opponents NAME ...``.

Both answer ``allowed`` from a bare Flask view that looks at nothing. ``bare`` runs under
the very settings of the webhook, front and TLS included; ``gthread`` under gunicorn's own
threaded workers.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flask import Flask, Response

from common.logs import configure
from contract.names import Names
from webhook.server.tls import Certificate, server_context
from webhook.server.worker import Server
from webhook.settings import Files, Settings

_ANSWER = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }
).encode()


class Bare(Server):
    """The webhook's server with a view that looks at nothing."""

    def load(self) -> Any:
        """Make the application."""
        app = Flask("bare", static_folder=None)
        app.add_url_rule(
            "/mutate/pods",
            view_func=lambda: Response(_ANSWER, mimetype="application/json"),
            methods=["POST"],
        )
        app.add_url_rule("/readyz", endpoint="readyz", view_func=lambda: "ok\n")
        return app


class Threaded(Bare):
    """The same view under gunicorn's own workers, with eight threads each."""

    def load_config(self) -> None:
        """Put gunicorn's worker in the place of ours."""
        super().load_config()
        context = server_context(self.settings.files)
        self.cfg.set("worker_class", "gthread")
        self.cfg.set("threads", 8)
        self.cfg.set("keepalive", 120)
        self.cfg.set("ssl_context", lambda _config, _default: context)


OPPONENTS = {"bare": Bare, "gthread": Threaded}


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM: NAME PORT CERT KEY WORKERS."""
    name, port, cert, key, workers = arguments
    configure()
    settings = Settings(
        "127.0.0.1",
        int(port),
        Files(Path(cert), Path(key)),
        Names(),
        workers=int(workers),
        drain_delay=0,
    )
    with tempfile.TemporaryDirectory(prefix="gpu-turnstile-bench-") as shared:
        OPPONENTS[name](settings, Certificate(settings.files), Path(shared)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
