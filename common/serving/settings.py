"""What a server is given: its settings, and what a worker needs of the program it serves."""

from dataclasses import dataclass
from typing import Protocol

from common.serving.connections import Observer
from common.serving.tls import Certificate, Files


@dataclass(frozen=True, slots=True)
class Serving:
    """The settings of a server.

    Attributes:
        name: of its processes.
        address: host and port to listen on, an IPv6 host in brackets.
        files: for TLS.
        largest_body: bytes of a request.
        buffered: bytes of all unanswered requests of a worker together.
        workers: processes.
        connections: of one worker at once.
        drain_delay: seconds from SIGTERM, while not ready, until no connection is accepted.
    """

    name: str
    address: str
    files: Files
    largest_body: int
    buffered: int = 64 * 2**20
    workers: int = 1
    connections: int = 1000
    drain_delay: float = 2.0


class Metrics(Observer, Protocol):
    """The metrics of a server."""

    def certificate_ends(self, expires: float) -> None: ...  # noqa: D102
    def certificate_changed(self, result: str) -> None: ...  # noqa: D102


class Application(Protocol):
    """The program behind a worker.

    Attributes:
        serving: the settings.
        certificate: to serve.
        draining: whether this worker is about to end.
    """

    serving: Serving
    certificate: Certificate
    draining: bool

    @property
    def metrics(self) -> Metrics:
        """The metrics of this worker."""
        ...

    def keeps_connections(self) -> bool:
        """Return whether connections are kept after an answer."""
        ...

    def end(self) -> None:
        """Let go of what the application holds: its worker takes no more connections soon."""
        ...
