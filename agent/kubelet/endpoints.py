"""The resources that are served, each by a server on a socket of its own.

Every server has a socket name of its own: gRPC unlinks a socket's path when its server stops, late
too, and another server may be listening there by then.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.kubelet.server import DevicePluginService, PluginServer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One resource to serve and register.

    Attributes:
        resource_name: the resource as pods name it.
        stem: how the file name of its socket begins.
        service: makes the service; every server needs its own.
    """

    resource_name: str
    stem: str
    service: Callable[[], DevicePluginService]


class EndpointServers:
    """The servers of all endpoints, made anew when their sockets are gone."""

    def __init__(
        self, folder: Path, endpoints: Sequence[Endpoint], *, on_cut: Callable[[], None]
    ) -> None:
        """Prepare; *on_cut* is told when the kubelet ends the stream of the newest registration."""
        self._dir = folder
        self._endpoints = endpoints
        self._on_cut = on_cut
        self.served: dict[str, PluginServer] = {}
        """What is served now, by the resource as pods name it."""

    @property
    def complete(self) -> bool:
        """Whether every endpoint is served on a socket that is there."""
        return bool(self.served) and all(each.socket.exists() for each in self.served.values())

    def serve(self) -> None:
        """Serve every endpoint on a new socket, and none on an older one any more.

        Raises:
            OSError: a socket cannot be made.
        """
        self.stop()
        for endpoint in self._endpoints:
            service = endpoint.service()
            service.on_cut = self._on_cut
            socket = self._dir / f"{endpoint.stem}-{secrets.token_hex(4)}.sock"
            try:
                self.served[endpoint.resource_name] = PluginServer(service, socket)
            except OSError:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop all servers."""
        for each in self.served.values():
            each.stop()
        self.served = {}
