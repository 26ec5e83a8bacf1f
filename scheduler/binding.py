"""Binding a pod: decide once more, choose the cards, and make one Binding that carries them.

The pod counts on its node from the decision on (:meth:`scheduler.state.State.assume`). It goes on
counting where nobody knows whether the Binding was done: it may be, and then its cards are taken.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Protocol

from common.apiserver.client import Json
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from contract.names import Names
from contract.pod_annotations import write_choice
from placement.cluster.fit import Unschedulable, check
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.pods import PodInfo, read_pod
from placement.scoring import Policy
from scheduler.errors import BindError
from scheduler.protocol import BindingArgs
from scheduler.state import State

_LOOKS = 3
_LOOK_AGAIN_SECONDS = 0.2
# As much as a pod of many containers may need; filter has found a place for it.
_MOST_TRIES = 20_000


class BindApi(Protocol):
    """The part of the API that pods are bound through."""

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` when there is none."""
        ...

    async def bind(self, namespace: str, name: str, binding: Json) -> None:
        """Create a Binding."""
        ...


@dataclass(eq=False)
class Binder:
    """Binds pods. Belongs to one event loop.

    Attributes:
        state: the cluster.
        api: where Bindings go.
        names: the contract's names.
        policy: which card a share prefers, as the agents have it.
        on_result: told what became of each request, in one word, for metrics.
        wait: waits for seconds before the API server is asked again.
    """

    state: State
    api: BindApi
    _: KW_ONLY
    names: Names
    policy: Policy = Policy.BINPACK
    on_result: Callable[[str], None] = lambda _result: None
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    _busy: set[str] = field(default_factory=set, init=False)

    @property
    def is_binding(self) -> bool:
        """Whether a request is under way."""
        return bool(self._busy)

    async def bind(self, args: BindingArgs) -> str:
        """Bind a pod.

        Returns:
            The cards that were chosen, for the log; empty where there was nothing to choose.

        Raises:
            BindError: it is not bound, or nobody knows yet; kube-scheduler tries it again.
        """
        if args.uid in self._busy:
            raise self._error("busy", "a binding of this pod is under way")
        self._busy.add(args.uid)
        try:
            return await self._bind(args)
        finally:
            self._busy.discard(args.uid)

    async def _bind(self, args: BindingArgs) -> str:
        pod = self.state.find(args.uid) or await self._fetch(args)
        if isinstance(pod, str):
            return pod
        chosen = self._assume(pod, args.node) if pod is not None else {}
        annotations = {
            self.names.predicate_gpu_idx(each.ordinal): write_choice(chosen[each.name])
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
                raise self._error("rejected", f"the API server refuses: {error}") from error
            await self._look_up(args, str(error), sure=True)
        except (Unavailable, Gone) as error:
            await self._look_up(args, str(error), sure=False)
        else:
            self.state.confirm_binding(args.uid, args.node)
            self.on_result("bound")
        return ", ".join(f"{name}: {write_choice(cards)}" for name, cards in chosen.items())

    async def _fetch(self, args: BindingArgs) -> PodInfo | str | None:
        """Ask for a pod that the watch has not shown.

        Returns:
            The pod; ``None`` for one that asks for no GPU; text where it is bound there already.
        """
        try:
            pod = await self._get(args)
        except (Rejected, Unavailable, Gone) as error:
            raise self._error("unavailable", f"the pod cannot be read: {error}") from error
        if pod is None:
            raise self._error("gone", f"the pod with UID {args.uid} is gone")
        if pod.terminal:
            raise self._error("gone", "the pod has ended")
        if pod.node == args.node:
            self.on_result("found")
            return "bound there already"
        if pod.node:
            raise self._error("elsewhere", f"the pod is bound to {pod.node} already")
        return pod if pod.demand else None

    async def _get(self, args: BindingArgs) -> PodInfo | None:
        """Ask for the pod; ``None`` where it is gone, or another has its name."""
        obj = await self.api.get_pod(args.namespace, args.name)
        if obj is None or obj["metadata"].get("uid") != args.uid:
            return None
        return read_pod(obj, self.names)

    def _assume(self, pod: PodInfo, node: str) -> dict[str, tuple[int, ...]]:
        """Choose the cards, count the pod on its node, and return them by container name."""
        with self.state.lock:
            held = self.state.allocations(node)
            if held is None:
                raise self._error("refused", f"node {node} is not known")
            snapshot = held.snapshot_without(pod.id.uid)
            fit = check(pod.pod_class, snapshot)
            if isinstance(fit, Unschedulable):
                raise self._error("refused", f"node {node}: {fit.reason}")
            try:
                plan = plan_pod(pod, held.node, snapshot.free, self.policy, most_tries=_MOST_TRIES)
            except NoPlacement as error:
                raise self._error("refused", f"node {node}: {error}") from error
            if plan is None:
                raise self._error("refused", f"node {node}: no place was found in time")
            cards = held.node.cards
            chosen = {
                name: tuple(sorted(cards[at].index for at in each.cards))
                for name, each in plan.items()
            }
            self.state.assume(replace(pod, node=held.node.name, chosen=chosen, annotated={}))
        return chosen

    async def _look_up(self, args: BindingArgs, why: str, *, sure: bool) -> None:
        """Find out what became of a Binding; return if it was done.

        Args:
            args: what was to be bound.
            why: what the API server said, or did not.
            sure: the API server has refused it.
        """
        for attempt in range(_LOOKS):
            if attempt:
                await self.wait(_LOOK_AGAIN_SECONDS)
            try:
                pod = await self._get(args)
            except (Rejected, Unavailable, Gone):
                continue
            if pod is None:
                self.state.drop_pod(args.uid)
                raise self._error("gone", f"the pod with UID {args.uid} is gone: {why}")
            if pod.node == args.node:
                self.state.confirm_binding(args.uid, args.node)
                self.on_result("found")
                return
            if pod.node or sure:
                self.state.forget_assumed(args.uid, args.node)
                where = f"the pod is bound to {pod.node}" if pod.node else "the API server refuses"
                raise self._error("elsewhere" if pod.node else "rejected", f"{where}: {why}")
        raise self._error("doubtful", f"nobody knows whether the pod was bound: {why}")

    def _error(self, result: str, text: str) -> BindError:
        self.on_result(result)
        return BindError(text)
