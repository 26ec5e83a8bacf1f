"""Requests of the binder: each has its time, whether or not a thread is free for it."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path

import pytest

from common.apiserver.rest import SharedTimeout, Timeout
from common.errors import Unavailable
from scheduler import cluster
from scheduler.cluster import BIND_SECONDS, SchedulerApi
from simulator.api.server import kubeconfig_for
from tests.agent.fakes import DEADLINE_S, FakeClock


class OneThread:
    """A client with one thread for its requests, which the API server holds until *freed*."""

    def __init__(self, kubeconfig: Path) -> None:
        self.clock = FakeClock()
        self.api = SchedulerApi(kubeconfig, bindings=1, clock=self.clock)
        self.api.client.call = self._call  # type: ignore[method-assign]
        self.timeouts: list[Timeout] = []
        self.held, self.freed = threading.Event(), threading.Event()

    def _call(self, *_: object, timeout: Timeout, **__: object) -> dict[str, object]:
        self.timeouts.append(timeout)
        self.held.set()
        assert self.freed.wait(DEADLINE_S)
        return {}

    def bind(self, name: str) -> Coroutine[None, None, None]:
        return self.api.bind("ns", name, {})

    def bind_two(self, seconds: float) -> list[object]:
        """Bind two pods; the second one waits for the thread so many seconds."""

        async def both() -> list[object]:
            first = asyncio.create_task(self.bind("first"))
            await asyncio.to_thread(self.held.wait, DEADLINE_S)
            second = asyncio.create_task(self.bind("second"))
            await asyncio.sleep(0)  # it is in the queue
            self.clock.now += seconds
            self.freed.set()
            return list(await asyncio.gather(first, second, return_exceptions=True))

        return asyncio.run(both())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneThread]:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for("http://127.0.0.1:1"))
    made = OneThread(path)
    yield made
    made.freed.set()
    made.api.close()


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no Binding end by the event loop's own time."""
    monkeypatch.setattr(cluster, "BIND_SECONDS", DEADLINE_S)


@pytest.mark.usefixtures("long")
def test_the_api_server_gives_a_binding_up_when_its_time_is_over(one: OneThread) -> None:
    """Its wait for the thread counts as well: the lease ends soon after."""
    assert one.bind_two(100.0) == [None, None]
    assert one.timeouts == [DEADLINE_S, DEADLINE_S - 100]
    assert {type(each) for each in one.timeouts} == {SharedTimeout}


@pytest.mark.usefixtures("long")
def test_a_binding_that_waits_for_a_thread_too_long_is_not_sent(one: OneThread) -> None:
    """One that is made later could take effect when another replica leads."""
    _, second = one.bind_two(DEADLINE_S)
    assert isinstance(second, Unavailable)
    assert one.timeouts == [DEADLINE_S]


def test_a_binding_without_a_response_ends(one: OneThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "BIND_SECONDS", BIND_SECONDS / 100)
    with pytest.raises(Unavailable, match=r"^API server: no response in 0.04 s$"):
        asyncio.run(one.bind("pod"))
