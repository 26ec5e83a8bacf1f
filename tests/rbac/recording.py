"""Requests of our programs to simulated API servers in this process."""

from collections.abc import Sequence
from typing import Any

import pytest

from simulator.api import http
from simulator.api.faults import RequestRecord
from tests.rbac.grants import Request

_PROGRAMS = {
    f"gpu-turnstile-{each}": each
    for each in ("agent", "certs", "claims", "gates", "scheduler", "view")
}


class Recording:
    """Every request of ours that any simulated API server of this process has got.

    Servers run in threads of their own; appending to a list is atomic.
    """

    def __init__(self) -> None:
        self._seen: list[RequestRecord] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        original = http._record

        def record(*args: Any) -> RequestRecord:
            made = original(*args)
            self._seen.append(made)
            return made

        patch.setattr(http, "_record", record)

    def take(self) -> dict[str, set[Request]]:
        seen, self._seen = self._seen, []
        return by_program(seen)


def by_program(records: Sequence[RequestRecord]) -> dict[str, set[Request]]:
    """Sort requests by the program that made them; those of simulated parts are left out."""
    found: dict[str, set[Request]] = {}
    for each in records:
        program = _PROGRAMS.get(each.user_agent.partition("/")[0])
        if program is not None:
            found.setdefault(program, set()).add(as_request(each))
    return found


def as_request(record: RequestRecord) -> Request:
    # For `create` the name is in the body, where no authorizer looks.
    return Request(record.verb, record.group, record.resource, record.namespace, record.name)
