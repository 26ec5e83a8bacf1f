"""Leases in memory, and replicas that take them by turns that a test decides."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from common.apiserver.errors import Rejected
from common.errors import Unavailable
from scheduler.cluster import SchedulerApi
from scheduler.election import Election
from scheduler.leadership import Leadership
from tests.agent.fakes import FakeClock
from tests.placement.cluster.builders import Json


class FakeLeases(SchedulerApi):
    """An API server with a lease, which checks resource versions.

    Attributes:
        error: raised for each read.
        loses_responses: whether writes are carried out, but get no response.
        on_store: called after each write.
    """

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version = 0
        self.error: Exception | None = None
        self.loses_responses = False
        self.on_store: Callable[[], None] = lambda: None

    def get_lease(self, namespace: str, name: str) -> Json | None:
        if self.error:
            raise self.error
        return self.lease

    def create_lease(self, namespace: str, lease: Json) -> None:
        if self.lease is not None:
            raise Rejected(409, "exists")
        self.store(lease)

    def replace_lease(self, namespace: str, lease: Json) -> None:
        assert self.lease is not None
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Rejected(409, "modified")
        self.store(lease)

    def store(self, lease: Json) -> None:
        self.version += 1
        metadata = {**lease.get("metadata", {}), "resourceVersion": str(self.version)}
        self.lease = {**lease, "metadata": metadata}
        self.on_store()
        if self.loses_responses:
            raise Unavailable("read timed out")


def replica(name: str, leases: FakeLeases, clock: FakeClock) -> Election:
    return Election(
        leases,
        namespace="gpu-turnstile",
        name="lease",
        identity=name,
        clock=clock,
        now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
    )


class _OneTurn(threading.Event):
    """A request to stop that comes at the end of the first turn."""

    def wait(self, _timeout: float | None = None) -> bool:
        self.set()
        return True


def take_turn(leadership: Leadership) -> None:
    leadership.run(_OneTurn())
