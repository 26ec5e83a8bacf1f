"""The processes: gunicorn's master, and workers with a front of our own. The only importer of it.

The master checks the certificate, opens the port and keeps the number of workers. Each
worker makes its own application after the fork, and with it its own writer of stamps: two
workers never write the same stamp. What a client can delay happens in :mod:`webhook.server.front`;
gunicorn's HTTP is for what :mod:`webhook.server.express` does not find ordinary.
"""

import contextlib
import gc
import logging
import os
import resource
import secrets
import shutil
import socket
import tempfile
import time
from email.utils import formatdate
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.http import RequestParser, wsgi
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.workers.base import Worker

from common.logs import JsonFormatter
from contract.stamps import Stamper, writer_name
from webhook.admission.reviewer import Reviewer
from webhook.admission.reviews import LARGEST_BODY
from webhook.handler import Handler, Request
from webhook.metrics import Metrics, share
from webhook.server import express
from webhook.server.app import VERIFIED, create_app
from webhook.server.connection import Limits, Peer, Reply, State
from webhook.server.front import Front
from webhook.server.tls import Certificate, Change
from webhook.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_log = logging.getLogger(__name__)

# With the delay before it, within the 30 s that Kubernetes grants a pod by default.
_DRAIN_SECONDS = 16.0
_TURN_SECONDS = 1.0
_BUFFERED = 64 * 2**20
_SPARE_DESCRIPTORS = 64
# A decoded pod is hundreds of objects that go as it goes, without a cycle among them: to
# look for one after every other review, as Python would, finds nothing.
_GARBAGE = 20_000


class Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn, told in code what it needs to know and nothing by files or environment.

    Args:
        settings: what the operator set.
        certificate: what is served; kept by the master for workers that start when the
            files cannot be used.
        shared: the directory of the workers' metrics.
    """

    def __init__(self, settings: Settings, certificate: Certificate, shared: Path) -> None:
        self.settings = settings
        self.certificate = certificate
        self.draining = False
        self.handler: Handler | None = None
        self._shared = shared
        self._places: dict[Any, int] = {}
        self._metrics: Metrics | None = None
        super().__init__()

    def load_config(self) -> None:
        """Hand our settings to gunicorn."""
        hooks = {
            "pre_fork": self._give_place,
            "post_fork": self._share_metrics,
            "child_exit": self._free_place,
        }
        for name, value in (gunicorn_settings(self.settings) | hooks).items():
            # Some settings exist in newer releases only, and so does what they switch off.
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    @property
    def metrics(self) -> Metrics:
        """Those of this worker."""
        if self._metrics is None:
            self._metrics = Metrics(self._shared)
        return self._metrics

    def load(self) -> "WSGIApplication":
        """Make the application of one worker; runs after the fork."""
        writer = writer_name(socket.gethostname(), secrets.token_hex(8))
        reviewer = Reviewer(
            names=self.settings.names,
            stamp=Stamper(clock=time.time_ns, writer=writer).next,
            largest_card=self.settings.largest_card,
        )
        self.handler = Handler(
            reviewer,
            only_verified=self.settings.files.client_ca is not None,
            metrics=self.metrics,
        )
        return create_app(self.handler, is_ready=lambda: not self.draining)

    def _give_place(self, _arbiter: Any, worker: Any) -> None:
        """Give the lowest place that no living worker has; runs in the master."""
        self.certificate.refresh()
        taken = set(self._places.values())
        self._places[worker] = next(each for each in range(len(taken) + 1) if each not in taken)

    def _free_place(self, _arbiter: Any, worker: Any) -> None:
        self._places.pop(worker, None)

    def _share_metrics(self, _arbiter: Any, worker: Any) -> None:
        share(self._shared, self._places[worker])


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    Raises:
        SettingsError: the certificate cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    certificate = Certificate(settings.files)
    master = os.getpid()
    shared = Path(tempfile.mkdtemp(prefix="gpu-turnstile-webhook-", dir=_memory_directory()))
    try:
        Server(settings, certificate, shared).run()
    finally:
        if os.getpid() == master:  # workers come by here as well
            shutil.rmtree(shared, ignore_errors=True)


def gunicorn_settings(settings: Settings) -> dict[str, Any]:
    """Translate our settings into gunicorn's."""
    return {
        "bind": settings.address,
        "workers": settings.workers,
        "worker_class": FrontWorker,
        "worker_connections": settings.connections,
        "graceful_timeout": int(settings.drain_delay + _DRAIN_SECONDS) + 2,
        # A root file system may be read-only; heartbeats need no disk.
        "worker_tmp_dir": _memory_directory(),
        "control_socket_disable": True,
        # Not to be read by gunicorn: they say that it is HTTPS that is spoken.
        "certfile": str(settings.files.cert),
        "keyfile": str(settings.files.key),
        "logger_class": _JsonLogger,
        "accesslog": None,
        "when_ready": _report_listening,
        "proc_name": "gpu-turnstile-webhook",
    }


class FrontWorker(Worker):  # type: ignore[misc]  # gunicorn has no type information
    """A worker process: our front before gunicorn's HTTP and the application."""

    app: Server

    def handle_exit(self, _sig: int, _frame: object) -> None:
        """SIGTERM: not ready from now on."""
        self.app.draining = True
        self.alive = False

    def run(self) -> None:
        """Serve until told to end, or until the master is gone; then drain."""
        settings, certificate, metrics = self.app.settings, self.app.certificate, self.app.metrics
        metrics.certificate_ends(certificate.expires)
        front = Front(
            listeners=self.sockets,
            context=lambda: certificate.context,
            answer=self.answer,
            limits=Limits(_descriptors(settings.connections), _BUFFERED, LARGEST_BODY),
            clock=time.monotonic,
            observer=_Observer(metrics),
        )
        front.wake_on(self.PIPE[0])
        # What has been made by now stays: not to be looked through while requests wait.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        refreshed = time.monotonic()
        ends = float("inf")
        while (now := time.monotonic()) < ends:
            self.notify()
            if not self.alive:
                # Answers say "close" from now on, and readiness is false: who still comes
                # is served until everybody has had the time to notice.
                ends = min(ends, now + settings.drain_delay)
            if now >= refreshed + _TURN_SECONDS:
                refreshed = now
                if (change := certificate.refresh()) is not Change.NONE:
                    metrics.certificate_changed(change.value)
                    metrics.certificate_ends(certificate.expires)
                if self.ppid != os.getppid():
                    self.alive = False
            front.turn(min(_TURN_SECONDS, max(ends - now, 0)))
        self.notify()
        front.drain(_DRAIN_SECONDS)

    def answer(self, request: bytes, peer: Peer) -> Reply:
        """Answer a request: the short way if it is an ordinary review, else as HTTP has it."""
        handler = self.app.handler
        ordinary = None if handler is None else express.read(request)
        if handler is None or ordinary is None or ordinary.path not in handler.routes:
            return self._answer_any(request, peer)
        asked = Request(ordinary.content_type, "", lambda: request[ordinary.begin :], peer.verified)
        answer = handler.answer(ordinary.path, asked)
        keep = ordinary.keep and bool(self.alive)
        content = express.write(
            answer.status, answer.media, answer.body, date=_http_date(int(time.time())), keep=keep
        )
        return Reply(content, keep)

    def _answer_any(self, request: bytes, peer: Peer) -> Reply:
        """Have a request parsed, answered and its answer written, by gunicorn's means."""
        outgoing = _Outgoing()
        parsed = None
        try:
            parsed = next(RequestParser(self.cfg, [request], peer.address))
            response, environ = wsgi.create(parsed, outgoing, peer.address, peer.local, self.cfg)
            environ[VERIFIED] = peer.verified
            if "HTTP_TRANSFER_ENCODING" in environ:  # one the front could make nothing of
                environ["wsgi.input"] = _Body(environ["wsgi.input"])
            if not self.alive:
                response.force_close()
            for piece in self.wsgi(environ, response.start_response):
                response.write(piece)
            response.close()
        except (NoMoreData, StopIteration):
            return Reply(_INCOMPLETE, keep=False)
        except Exception as error:  # noqa: BLE001 - gunicorn's own last resort: it words and logs it
            outgoing.content.clear()
            self.handle_error(parsed, outgoing, peer.address, error)
            return Reply(bytes(outgoing.content), keep=False)
        return Reply(bytes(outgoing.content), keep=not response.should_close())


_INCOMPLETE = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 29\r\n\r\nthe request breaks off early\n"
)


@lru_cache(maxsize=1)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


class _Outgoing:
    """Collects what gunicorn writes to a client."""

    def __init__(self) -> None:
        self.content = bytearray()

    def sendall(self, data: bytes) -> None:
        self.content += data

    def send(self, data: bytes) -> int:
        """Take gunicorn's "100 Continue" for sent: the front says it, before the body comes."""
        return len(data)

    def gettimeout(self) -> float:
        """Say, as gunicorn asks before it words an error, that nothing here can block."""
        return 0.0


class _Body:
    """Turns gunicorn's errors of a broken body into the OSError that WSGI readers expect."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1) -> bytes:
        try:
            content: bytes = self._body.read(size)
        except ParseException as error:
            raise OSError(str(error)) from error
        return content


class _Observer:
    """Tells the metrics what the front sees."""

    def __init__(self, metrics: Metrics) -> None:
        self.in_flight = metrics.in_flight
        self.connected = metrics.connected
        self._metrics = metrics

    def ended(self, state: State, why: str) -> None:
        self._metrics.ended(state.value, why)


def _descriptors(connections: int) -> int:
    """Raise the limit of open files as far as needed and allowed; give what it lets us hold."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(connections, soft - _SPARE_DESCRIPTORS), 1)


def _memory_directory() -> str | None:
    candidate = Path("/dev/shm")  # noqa: S108 - what is made there is made safely
    return str(candidate) if candidate.is_dir() and os.access(candidate, os.W_OK) else None


def _report_listening(arbiter: Any) -> None:
    addresses = [str(listener) for listener in arbiter.LISTENERS]
    _log.info("listening", extra={"addresses": addresses})


class _JsonLogger(Logger):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's own messages, as JSON like ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonFormatter())
