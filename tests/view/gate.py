"""The simulated API server as one of a user's whose rights are taken and answers held back."""

import contextlib
from collections.abc import Iterator
from typing import Any

from simulator.api.faults import SILENCE, Fault, RequestRecord
from simulator.api.server import ApiServer


class Gate:
    """What passes of the view's requests.

    Attributes:
        url: of the server.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._before = len(server.requests)
        self.url = server.url

    @property
    def denied(self) -> set[str]:
        """Regular expressions of ``verb path``, such as ``list /api/v1/nodes``."""
        raise AttributeError("is only set")

    @denied.setter
    def denied(self, patterns: set[str]) -> None:
        self._server.mend()
        for each in patterns:
            self._server.fail(Fault(403, message='User "ana" cannot {asked}'), each)

    @property
    def asked(self) -> list[str]:
        """Verb and path of each request so far."""
        return [f"{each.verb} {each.path}" for each in self._records()]

    @property
    def headers(self) -> list[Any]:
        """The headers of each."""
        return [each.headers for each in self._records()]

    def freeze(self) -> None:
        """Answer nothing from now on; what is open stays open, and silent."""
        self._server.fail(SILENCE)

    def thaw(self) -> None:
        """Answer again."""
        self._server.mend()

    def cut(self) -> None:
        """End all watches: a server lets them run on when rights are taken away."""
        self._server.drop_watches()

    def _records(self) -> list[RequestRecord]:
        requests = self._server.requests[self._before :]
        return [each for each in requests if "simulator" not in each.user_agent]


@contextlib.contextmanager
def gate_to(server: ApiServer) -> Iterator[Gate]:
    """Open a gate to a server; at the end it answers as before."""
    try:
        yield Gate(server)
    finally:
        server.mend()
        server.drop_watches()
