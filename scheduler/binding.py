"""Binds a pod: checks the node again, chooses cards, and creates a Binding with them.

The pod counts on its node as soon as the cards are chosen (:meth:`scheduler.state.State.assume`).
If it is unknown whether the Binding succeeded, the pod still counts: it may hold the cards.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace

from common.apiserver.client import Json
from common.apiserver.errors import REQUEST_ERRORS, Gone, Rejected
from common.errors import Unavailable
from contract.pod_annotations import write_choice
from placement.cluster.fit import Unschedulable, check
from placement.errors import NoPlacement
from placement.pods import PodInfo, read_pod
from scheduler.choice import choose_cards
from scheduler.cluster import SchedulerApi
from scheduler.errors import BindError
from scheduler.protocol import BindingArgs
from scheduler.state import State, read_undecided

# kube-scheduler may give a request up after 5 s.
_LONGEST_WAIT_SECONDS = 1.0
_LOOKUPS = 3
_LOOKUP_PAUSE_SECONDS = 0.2


@dataclass(eq=False)
class Binder:
    """Binds pods. Used by one event loop.

    Attributes:
        most: most Bindings in progress, for :meth:`wait_for_room`.
        on_result: called with the result of each request, one word, for metrics.
        wait: sleeps for some seconds before the pod is looked up again.
    """

    state: State
    api: SchedulerApi
    _: KW_ONLY
    most: int = 64
    on_result: Callable[[str], None] = lambda _result: None
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    _busy: set[str] = field(default_factory=set, init=False)
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def is_binding(self) -> bool:
        """Whether a Binding is in progress."""
        return bool(self._busy)

    @property
    def is_full(self) -> bool:
        """Whether so many Bindings are in progress that one more would make none end sooner."""
        return len(self._busy) >= self.most

    async def wait_for_room(self) -> None:
        """Wait until fewer Bindings are in progress; one second at most.

        kube-scheduler decides about the next pod without waiting for Bindings. If they are slower,
        so many would be in progress that their time is over before the API server responds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_WAIT_SECONDS):
                while self.is_full:
                    self._ended.clear()
                    await self._ended.wait()

    async def bind(self, args: BindingArgs) -> str:
        """Bind a pod; return the chosen cards, for the log, empty if none are chosen here.

        Raises:
            BindError: the pod is not bound, or it is unknown whether it is; kube-scheduler tries
                again.
        """
        if args.uid in self._busy:
            raise self._error("busy", "a binding of this pod is in progress")
        self._busy.add(args.uid)
        try:
            return await self._bind(args)
        finally:
            self._busy.discard(args.uid)
            self._ended.set()

    async def _bind(self, args: BindingArgs) -> str:
        pod = self.state.find(args.uid) or await self._fetch(args)
        if isinstance(pod, str):
            return pod
        chosen = self._assume(pod, args.node) if pod is not None else {}
        annotations = {
            self.state.names.predicate_gpu_idx(each.ordinal): write_choice(chosen[each.name])
            for each in (pod.demand.containers if pod is not None else ())
        }
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": args.name,
                "namespace": args.namespace,
                "uid": args.uid,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
        }
        try:
            await self.api.bind(args.namespace, args.name, binding)
        except Rejected as error:
            if error.status != 409:
                self.state.forget_assumed(args.uid, args.node)
                raise self._error("rejected", f"the API server rejects it: {error}") from error
            await self._look_up(args, str(error), rejected=True)
        except (Unavailable, Gone) as error:
            await self._look_up(args, str(error), rejected=False)
        else:
            self.state.confirm_binding(args.uid, args.node)
            self.on_result("bound")
        return ", ".join(f"{name}: {write_choice(cards)}" for name, cards in chosen.items())

    async def _fetch(self, args: BindingArgs) -> PodInfo | str | None:
        """Get a pod that the watch has not shown.

        Returns:
            The pod; ``None`` if no cards are chosen for it here; text if it is already bound to the
            node.
        """
        try:
            obj = await self._get(args)
        except REQUEST_ERRORS as error:
            raise self._error("unavailable", f"the pod cannot be read: {error}") from error
        if obj is None:
            raise self._error("gone", f"the pod with UID {args.uid} is gone")
        pod = read_pod(obj, self.state.names)
        if pod.terminal:
            raise self._error("gone", "the pod has ended")
        if pod.node == args.node:
            self.on_result("found")
            return "already bound to this node"
        if pod.node:
            raise self._error("elsewhere", f"the pod is already bound to {pod.node}")
        return read_undecided(obj, self.state.names)

    async def _get(self, args: BindingArgs) -> Json | None:
        """Get the pod; ``None`` if it is gone, or if another pod has its name."""
        obj = await self.api.get_pod(args.namespace, args.name)
        return obj if obj is not None and obj["metadata"].get("uid") == args.uid else None

    def _assume(self, pod: PodInfo, node: str) -> Mapping[str, tuple[int, ...]]:
        """Choose cards, count the pod on the node, and return its card indices by container."""
        with self.state.lock:
            allocations = self.state.allocations(node)
            if allocations is None:
                raise self._error("refused", f"node {node} is unknown")
            snapshot = self.state.snapshot_for(pod.id.uid, allocations)
            fit = check(pod.pod_class, snapshot)
            if isinstance(fit, Unschedulable):
                raise self._error("refused", f"node {node}: {fit.reason}")
            try:
                chosen = choose_cards(self.state, pod, allocations, snapshot.free)
            except NoPlacement as error:
                raise self._error("refused", f"node {node}: {error}") from error
            self.state.assume(replace(pod, node=allocations.node.name, chosen=chosen, annotated={}))
        return chosen

    async def _look_up(self, args: BindingArgs, why: str, *, rejected: bool) -> None:
        """Find out whether a Binding succeeded; return if it did.

        *why* is the API server's error, *rejected* whether it has rejected the Binding.

        Raises:
            BindError: the pod is not bound to the node, or it is still unknown whether it is.
        """
        for attempt in range(_LOOKUPS):
            if attempt:
                await self.wait(_LOOKUP_PAUSE_SECONDS)
            try:
                obj = await self._get(args)
            except REQUEST_ERRORS:
                continue
            if obj is None:
                self.state.drop_pod(args.uid)
                raise self._error("gone", f"the pod with UID {args.uid} is gone: {why}")
            pod = read_pod(obj, self.state.names)
            if pod.node == args.node:
                self.state.confirm_binding(args.uid, args.node)
                self.on_result("found")
                return
            if pod.node or rejected:
                self.state.forget_assumed(args.uid, args.node)
                text = (
                    f"the pod is bound to {pod.node}" if pod.node else "the API server rejects it"
                )
                raise self._error("elsewhere" if pod.node else "rejected", f"{text}: {why}")
        raise self._error("doubtful", f"it is unknown whether the pod was bound: {why}")

    def _error(self, result: str, text: str) -> BindError:
        self.on_result(result)
        return BindError(text)
