"""What is fuzzed: a worker without its sockets. Imported late, for atheris to instrument."""

import json
import os
from collections import Counter
from pathlib import Path

from bench.servers import make_certificates
from contract.names import Names
from contract.stamps import OrderStamp
from webhook.access_log import AccessLog
from webhook.admission.reviewer import Reviewer
from webhook.admission.reviews import LARGEST_BODY
from webhook.handler import Handler
from webhook.server.app import create_app
from webhook.server.connection import Peer
from webhook.server.framing import Framer, Progress
from webhook.server.tls import Certificate
from webhook.server.worker import FrontWorker, Server
from webhook.settings import Files, Settings

_PEER = Peer(("192.0.2.1", 1234), ("192.0.2.2", 8443), verified=False)


class Unacceptable(Exception):
    """An input was answered as none may be; the message says how."""


class Target:
    """A worker without its sockets.

    Args:
        folder: for the certificate and what a worker needs.
    """

    def __init__(self, folder: Path) -> None:
        make_certificates(folder)
        files = Files(folder / "tls.crt", folder / "tls.key")
        settings = Settings("127.0.0.1", 8443, files, Names())
        server = Server(settings, Certificate(files), folder)
        server.cfg.set("errorlog", os.devnull)
        self._log = log = server.cfg.logger_class(server.cfg)
        self._worker = FrontWorker(0, os.getppid(), [], server, 30, server.cfg, log)
        reviewer = Reviewer(
            names=settings.names,
            stamp=lambda: OrderStamp(1_700_000_000_000_000_000, "fuzz", 0),
            largest_card=96,
        )
        server.handler = Handler(reviewer, access=AccessLog(len))
        self._worker.wsgi = create_app(server.handler)
        self.statuses: Counter[str] = Counter()

    def close(self) -> None:
        """Return back what a worker holds."""
        self._worker.tmp.close()
        for handler in tuple(self._log.error_log.handlers):
            self._log.error_log.removeHandler(handler)
            handler.close()

    def try_one(self, data: bytes) -> None:
        """Send *data* as a connection would, in two pieces; look at every answer.

        Raises:
            Unacceptable: an answer is none, or says that the server has failed.
        """
        framer = Framer(largest_body=LARGEST_BODY)
        middle = len(data) // 2
        for piece in (data[:middle], data[middle:]):
            framer.receive(piece)
            while framer.progress in (Progress.WHOLE, Progress.LAST):
                last = framer.progress is Progress.LAST
                reply = self._worker.answer(framer.take(), _PEER)
                self.statuses[_status(reply.content, data)] += 1
                if last or not reply.keep:
                    return


def _status(answer: bytes, data: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode("ascii", "replace")
    # 501 is what HTTP says of a transfer coding that nobody knows.
    if not head.startswith(b"HTTP/1.") or not (status.startswith(("2", "4")) or status == "501"):
        raise Unacceptable(f"{head!r} for {data!r}")
    if b"application/json" in head:
        json.loads(body)
    return status
