"""What the operator sets."""

from dataclasses import dataclass
from pathlib import Path

from contract.names import Names


@dataclass(frozen=True, slots=True)
class Settings:
    """One running webhook.

    Attributes:
        host: address to listen on.
        port: port to listen on.
        cert: PEM file: serving certificate, then its chain.
        key: PEM file: the certificate's private key.
        names: resources and annotations under the chosen domain.
        workers: processes.
        threads: requests a process answers at once.
    """

    host: str
    port: int
    cert: Path
    key: Path
    names: Names
    workers: int
    threads: int

    @property
    def address(self) -> str:
        """Host and port in one, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
