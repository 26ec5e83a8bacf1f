"""The settings of the operator."""

from dataclasses import dataclass

from common.serving.tls import Files
from contract.names import Names

__all__ = ["Files", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """One running webhook.

    Attributes:
        host: address to listen on.
        port: port to listen on.
        files: for TLS.
        names: resources and annotations under the chosen domain.
        workers: processes.
        connections: of one process at once.
        largest_card: memory blocks of the largest card there is; 0 when that is not known.
        scheduler_name: of the scheduler that GPU pods get that name none; empty for none.
        drain_delay: seconds from SIGTERM, while not ready, until no connection is accepted.
    """

    host: str
    port: int
    files: Files
    names: Names
    workers: int = 2
    connections: int = 1000
    largest_card: int = 0
    scheduler_name: str = ""
    drain_delay: float = 2.0

    @property
    def address(self) -> str:
        """Host and port in one, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
