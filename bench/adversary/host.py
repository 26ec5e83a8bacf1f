"""The agent: its allocator and its pod cache, started and killed at will."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.allocator.allocator import Allocator
from agent.allocator.grants import ContainerEdits
from agent.allocator.interfaces import Checkpoint
from agent.enforcement.none import NoEnforcement
from agent.kubernetes_api.pods import PodCache
from bench.adversary.api import Api
from bench.adversary.devices import Devices
from bench.adversary.pods import NAMES, NODE
from placement.pods import PodInfo

if TYPE_CHECKING:
    from bench.adversary.world import World


class Watch:
    """Moves one ``PodCache`` along the API server's events, one by one, as a follower does."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api = api
        self._open = False
        self._at = 0
        self.cache = PodCache(api=api, node=NODE, names=NAMES, clock=clock)

    @property
    def behind(self) -> int:
        """Count the events that the cache has not been told of."""
        return len(self._api.log) - self._at

    def deliver(self, count: int = 1_000_000) -> None:
        """Tell the cache of the next events; of none while the API server is away."""
        if self._api.away:
            self._open = False
        elif not self._open:
            self.cache.list()
            self._open, self._at = True, len(self._api.log)
        for _ in range(min(count, self.behind) if self._open else 0):
            self._at += 1
            self.cache.apply(*self._api.log[self._at - 1])

    def end(self) -> None:
        """Let the watch end: what comes next is a list."""
        self._open = False


class CheckpointReader:
    """The kubelet's checkpoint, as it was written last (``agent.allocator.model.ports``)."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def read(self) -> Checkpoint:
        """Return what it says."""
        return Checkpoint(self._devices.saved)


class StateFolder:
    """The agent's state folder: what an agent wrote, the next one finds."""

    def __init__(self) -> None:
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
        self._world = world
        self._folder = StateFolder()
        self._shown: set[str] = set()  # UIDs of the pods that this agent was ever shown
        self.watch: Watch
        self.allocator: Allocator

    def start(self) -> None:
        """Start an agent in the place of the one there is; registering is left to the caller."""
        world = self._world
        world.api.patches.clear()
        watch = self.watch = Watch(world.api, lambda: world.now)
        allocator = self.allocator = Allocator(
            table=world.table,
            pods=watch.cache,
            pod_resources=world.kubelet,
            checkpoint=CheckpointReader(world.devices),
            store=self._folder,
            kubelet=lambda: f"life {world.devices.life}",
            writer=world.api,
            decision_log=world.diary,
            inject=lambda _grant: ContainerEdits(),
            enforcer=NoEnforcement(),
            unhealthy=lambda uuid: "xid" if uuid in world.ill else "",
            pause=lambda _seconds: None,
        )
        watch.deliver(0)  # before there is a session nothing is assigned, and nobody is told
        self._shown = {each.id.uid for each in watch.cache.pods()}

        def changed(view: PodInfo) -> None:
            self._shown.add(view.id.uid)
            world.guarded("catch up", lambda: allocator.catch_up(view))

        watch.cache.subscribe(changed)
        allocator.refresh()

    def knows(self, uids: set[str]) -> bool:
        """Return whether the agent was ever shown a pod."""
        return not self._shown.isdisjoint(uids)
