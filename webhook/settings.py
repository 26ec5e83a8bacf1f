"""The settings of the operator."""

from dataclasses import dataclass

from common.serving.tls import Files
from contract.names import Names
from webhook.admission.options import DEFAULTS, Options

__all__ = ["Files", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """One running webhook.

    Attributes:
        host: address to listen on.
        port: port to listen on.
        files: for TLS.
        names: resources and annotations under the chosen domain.
        connections: at once.
        options: choices on which decisions depend.
        drain_delay: seconds from SIGTERM, while not ready, until no connection is accepted.
    """

    host: str
    port: int
    files: Files
    names: Names
    connections: int = 1000
    options: Options = DEFAULTS
    drain_delay: float = 2.0
