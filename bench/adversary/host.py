"""The agent: its allocator and its pod cache, started and killed at will.

The cache follows its watch in a thread of its own, as in the agent; but that thread moves only
when it is told to, and whoever tells it waits until it has come to rest again.
"""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

from agent.allocator.allocator import Allocator
from agent.allocator.model.answer import Answer
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.pod_view import PodView
from agent.enforcement.none import NoEnforcement
from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone
from agent.kubernetes_api.pods import PodCache
from bench.adversary.api import Api
from bench.adversary.devices import Devices
from bench.adversary.pods import NAMES, NODE, Json

if TYPE_CHECKING:
    from bench.adversary.world import World

_PATIENCE_S = 60.0


class _Rest(threading.Event):
    """A stop signal whose waits end when the host says so, whatever time they were for."""

    def __init__(self, rest: Callable[[], object]) -> None:
        super().__init__()
        self._rest = rest

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 -- an Event's
        if not self.is_set():
            self._rest()
        return self.is_set()


class Watch:
    """Moves one ``PodCache`` along the API server's events, one by one."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        """Make a cache; it knows nothing yet."""
        self._api = api
        self._orders: SimpleQueue[str] = SimpleQueue()
        self._at_rest = threading.Semaphore(0)
        self._stop = _Rest(self._wait_for_orders)
        self._open = False
        self._at = 0
        self.cache = PodCache(api=self, node=NODE, names=NAMES, clock=clock)
        self._thread = threading.Thread(
            target=lambda: self.cache.run(self._stop), name="watch", daemon=True
        )

    def start(self) -> None:
        """List, if the API server answers."""
        self._thread.start()
        self._until_rest()

    @property
    def behind(self) -> int:
        """Count the events that the cache has not been told of."""
        return len(self._api.log) - self._at

    def deliver(self, count: int) -> None:
        """Report the cache of the next events; of none while the API server is away."""
        if self._api.away:
            if self._open:
                self._order("break")
            return
        while not self._open:
            self._order("go")
        for _ in range(min(count, self.behind)):
            self._order("next")

    def end(self, *, expired: bool) -> None:
        """Let the watch end."""
        if self._open:
            self._order("expire" if expired else "break")

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._orders.put("break")
        self._thread.join(_PATIENCE_S)

    def _order(self, word: str) -> None:
        self._orders.put(word)
        self._until_rest()

    def _until_rest(self) -> None:
        if not self._at_rest.acquire(timeout=_PATIENCE_S):
            raise RuntimeError("the pod cache did not come to rest")

    def _wait_for_orders(self) -> str:
        self._at_rest.release()
        return self._orders.get()

    # --- agent.kubernetes_api.pods.PodApi ------------------

    def list_pods(self, node: str, within: float | None = None) -> tuple[list[Json], str]:  # noqa: ARG002 -- all are of one node
        """List the pods; where it is for the watch, note from where that goes on."""
        found = self._api.list_pods()
        if within is None:
            self._at = len(self._api.log)
        return found

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:  # noqa: ARG002 -- it answers at once
        """Get one pod."""
        return self._api.get_pod(namespace, name)

    def watch_pods(self, node: str, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Yield an event whenever there is an order to."""
        if not node or not resource_version or self._api.away:
            raise Unavailable("API server: away")
        self._open = True
        try:
            while (order := self._wait_for_orders()) == "next":
                self._at += 1
                yield self._api.log[self._at - 1]
        finally:
            self._open = False
        if order == "expire":
            raise Gone("too old resource version")
        raise Unavailable("API server: connection reset")


class CheckpointReader:
    """The kubelet's checkpoint, as it was written last (``agent.allocator.model.ports``)."""

    def __init__(self, devices: Devices) -> None:
        """Read what *devices* writes."""
        self._devices = devices

    def read(self) -> Checkpoint:
        """Return what it says."""
        return Checkpoint(self._devices.saved)


class StateFolder:
    """The agent's state folder: what an agent wrote, the next one finds."""

    def __init__(self) -> None:
        """Start empty."""
        self._text = ""

    def load(self) -> str:
        """Return what was written last."""
        return self._text

    def save(self, text: str) -> None:
        """Replace what was written before."""
        self._text = text


class Host:
    """The agent of one node."""

    def __init__(self, world: "World") -> None:
        """Run no agent yet."""
        self._world = world
        self._folder = StateFolder()
        self._watch: Watch | None = None
        self._shown: set[str] = set()  # UIDs of the pods that this agent was ever shown
        self.allocator: Allocator

    def start(self) -> None:
        """Start an agent in the place of the one there is; registering is left to the caller."""
        world = self._world
        self.stop()
        world.api.patches.clear()
        watch = self._watch = Watch(world.api, lambda: world.now)
        allocator = self.allocator = Allocator(
            table=world.table,
            pods=watch.cache,
            record=world.kubelet,
            checkpoint=CheckpointReader(world.devices),
            store=self._folder,
            kubelet=lambda: f"life {world.devices.life}",
            writer=world.api,
            decision_log=world.diary,
            answer=lambda _grant: Answer(),
            enforcer=NoEnforcement(),
            unhealthy=lambda uuid: "xid" if uuid in world.ill else "",
            pause=lambda _seconds: None,
        )
        watch.start()  # before there is a session nothing is assigned, and nobody is told
        self._shown = {each.id.uid for each in watch.cache.views()}

        def changed(view: PodView) -> None:
            self._shown.add(view.id.uid)
            world.guarded("catch up", lambda: allocator.catch_up(view))

        watch.cache.subscribe(changed)
        allocator.refresh()

    def stop(self) -> None:
        """End it."""
        if self._watch is not None:
            self._watch.stop()

    def knows(self, uids: set[str]) -> bool:
        """Return whether the agent was ever shown a pod."""
        return not self._shown.isdisjoint(uids)

    def deliver(self, count: int = 1_000_000) -> None:
        """Let the watch catch up by so many events."""
        if self._watch is not None:
            self._watch.deliver(count)

    def break_watch(self, *, expired: bool) -> None:
        """Let the watch end, because its place in the log is gone or for no reason."""
        if self._watch is not None:
            self._watch.end(expired=expired)

    @property
    def behind(self) -> int:
        """Count the events that the agent has not been told of."""
        return self._watch.behind if self._watch is not None else 0
