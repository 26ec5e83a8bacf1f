"""Carries out what the state decides: creates and deletes templates, and says why pods wait."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from claims.cluster import ClaimsApi
from claims.metrics import Metrics
from claims.state import ClaimedPod, Key, KnownTemplate, Plan, TemplateState
from common.apiserver.client import Json
from common.apiserver.errors import Gone, Rejected
from common.apiserver.events import EventSubject, Notice, create
from common.backoff import Backoff, pause_after
from common.errors import Unavailable
from contract.claims import SHAPE_LABEL, read_pod_claim, shape_of
from contract.names import Names

log = logging.getLogger(__name__)

REASON = "GPUClaimWaits"
"""The Events of pods whose template is not made."""

_PASS_SECONDS = 10.0
_OUTAGE_SECONDS = (0.2, 2.0)
_AGAIN_SECONDS = (0.2, 30.0)
"""Pauses until a template that the watch does not show is created again."""
_REFUSED_SECONDS = (1.0, 300.0)
_MOST_FAILURES = 3
"""After so many creations without a response in one pass the API server counts as unavailable."""
_MOST_WRITES = 20
"""Most creations, deletions and Events in one pass: a namespace with many holds up no others."""


K = TypeVar("K", Key, str)
T = TypeVar("T")


class _Attempt(NamedTuple):
    """The last attempt to create or delete a template.

    Attributes:
        number: how many there were.
        again_at: the earliest time of the next one, monotonic seconds.
        refusal: why the API server refused it; empty if it did not.
    """

    number: int = 0
    again_at: float = 0.0
    refusal: str = ""


@dataclass(eq=False)
class TemplateWriter:
    """Creates and deletes templates. :meth:`run` belongs to one thread.

    *most* and *unused* are as in :meth:`TemplateState.plan`. *clock* is monotonic, *wall_clock*
    gives the times of Events; both in seconds.
    """

    state: TemplateState
    api: ClaimsApi
    metrics: Metrics
    _: KW_ONLY
    names: Names
    most: int
    unused: float
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    _attempts: dict[Key | str, _Attempt] = field(default_factory=dict, init=False)
    """By key, or by UID for a deletion."""
    _said: dict[ClaimedPod, str] = field(default_factory=dict, init=False)

    def run(self, stop: threading.Event, in_step: Callable[[], bool]) -> None:
        """Write what is decided, at each change and every ten seconds at least, until *stop*."""
        pauses = Backoff(*_OUTAGE_SECONDS)
        while not stop.is_set():
            now = self.clock()
            due = [each.again_at - now for each in self._attempts.values()]
            self.state.changed.wait(max(min(*due, _PASS_SECONDS), 0.0) if due else _PASS_SECONDS)
            self.state.changed.clear()
            if stop.is_set() or not in_step():
                continue
            try:
                self.write()
                pauses.reset()
            except Unavailable as error:
                log.warning("templates wait", extra={"reason": str(error)})
                stop.wait(pauses.next())
                self.state.changed.set()

    def write(self) -> None:
        """Write what is decided now; if that is too much, ``changed`` is set for the rest.

        Raises:
            Unavailable: the API server cannot be reached; the rest is left for the next call.
        """
        plan = self.state.plan(self.clock(), most=self.most, unused=self.unused)
        delete = {each.uid: (each, "replaced") for each in plan.replace.values()}
        delete |= {each.uid: (each, "swept") for each in plan.sweep}
        self._attempts = {
            key: each for key, each in self._attempts.items() if key in plan.create or key in delete
        }
        missing = self._due(in_turns(plan.create, lambda key: key[0]))
        unwanted = self._due(in_turns(delete, lambda uid: delete[uid][0].key[0]))
        self._create_all(plan.create[key][0] for key in missing[:_MOST_WRITES])
        for uid in unwanted[:_MOST_WRITES]:
            self._delete(*delete[uid])
        if self._say(plan) or max(len(missing), len(unwanted)) > _MOST_WRITES:
            self.state.changed.set()

    def _due(self, keys: list[K]) -> list[K]:
        """Return those that may be attempted now.

        One that fails again and again, by another webhook of its namespace, holds up no others.
        """
        now, none = self.clock(), _Attempt()
        due = [key for key in keys if now >= self._attempts.get(key, none).again_at]
        return sorted(due, key=lambda key: self._attempts.get(key, none).number)

    def _note(self, key: Key | str, bounds: tuple[float, float], refusal: str = "") -> None:
        """Note an attempt; the next one is made after a pause."""
        number = self._attempts.get(key, _Attempt()).number + 1
        again_at = self.clock() + pause_after(number, *bounds)
        self._attempts[key] = _Attempt(number, again_at, refusal)

    def _create_all(self, pods: Iterable[ClaimedPod]) -> None:
        failed = 0
        for pod in pods:
            result, reason = self._create(pod)
            if result:
                self.metrics.wrote(result)
            if result == "refused":
                self._note(pod.key, _REFUSED_SECONDS, reason)
            else:
                self._note(pod.key, _AGAIN_SECONDS)
            failed += result == "unavailable"
            if failed == _MOST_FAILURES:
                raise Unavailable(reason)

    def _create(self, pod: ClaimedPod) -> tuple[str, str]:
        """Create the template of a pod; return the result, and why it is no success.

        The result is empty if the pod has changed since.
        """
        where = {"template": "/".join(pod.key), "pod": f"{pod.namespace}/{pod.name}"}
        try:
            found = self.api.find_pod(pod.namespace, pod.name)
            claim = None if found is None else read_pod_claim(found, self.names)
            if claim is None or claim.template != pod.template:
                return "", ""
            self.api.create_template(pod.namespace, make_template(claim.template, claim.spec))
        except Unavailable as error:
            return "unavailable", str(error)
        except Rejected as error:
            if error.status == HTTPStatus.CONFLICT:
                return "found", ""  # another replica was faster
            log.warning("template refused", extra={**where, "reason": str(error)})
            return "refused", str(error)
        log.info("template created", extra=where)
        return "created", ""

    def _delete(self, template: KnownTemplate, result: str) -> None:
        namespace, name = template.key
        where = {"template": f"{namespace}/{name}"}
        pause = _AGAIN_SECONDS
        try:
            self.api.delete_template(namespace, name, template.uid)
        except (Rejected, Gone) as error:
            if isinstance(error, Rejected) and error.status == HTTPStatus.FORBIDDEN:
                pause = _REFUSED_SECONDS
                self.metrics.wrote("refused")
                log.warning("template refused", extra={**where, "reason": str(error)})
            # else another replica was faster
        else:
            self.metrics.wrote(result)
            log.info("template deleted", extra={**where, "reason": result})
        self._note(template.uid, pause)

    def _say(self, plan: Plan) -> bool:
        """Write Events on pods that wait, each once; return whether some are left."""
        texts = {pod: differing(pod) for pod in plan.differing}
        texts |= {pod: above_cap(pod, self.most) for pod in plan.above_cap}
        for key, pods in plan.create.items():
            if refusal := self._attempts.get(key, _Attempt()).refusal:
                texts |= {pod: refused(pod, refusal) for pod in pods}
        self._said = {pod: text for pod, text in self._said.items() if texts.get(pod) == text}
        new = in_turns((pod for pod in texts if pod not in self._said), lambda pod: pod.namespace)
        for pod in new[:_MOST_WRITES]:
            subject = EventSubject("Pod", pod.namespace, pod.name, pod.uid)
            try:
                create(self.api, Notice(subject, REASON, texts[pod]), at=self.wall_clock())
            except (Rejected, Gone) as error:  # by another replica already, or not allowed
                log.debug("event not written", extra={"reason": str(error)})
            self._said[pod] = texts[pod]
        return len(new) > _MOST_WRITES


def in_turns(items: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
    """Order items so that each namespace has its turn, however many of another one come first."""
    turns = Counter[str]()
    order: list[tuple[int, T]] = []
    for each in items:
        order.append((turns[namespace(each)], each))
        turns[namespace(each)] += 1
    return [each for _, each in sorted(order, key=lambda it: it[0])]


def make_template(name: str, spec: Mapping[str, Any]) -> Json:
    """Return the ResourceClaimTemplate of this name and spec."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "labels": {SHAPE_LABEL: shape_of(name)}},
        "spec": dict(spec),
    }


def differing(pod: ClaimedPod) -> str:
    """Return why a pod whose limits need another template than it names waits."""
    needs = f"its limits need {pod.own}" if pod.own else "its limits need none"
    return (
        f"template {pod.template} is not made: {needs}. Limits or annotations were changed after "
        "the webhook's call, the claim was copied, or the webhook has another version: delete the "
        "pod, and create it without claim"
    )


def above_cap(pod: ClaimedPod, most: int) -> str:
    """Return why a pod in a namespace with too many templates waits."""
    return (
        f"template {pod.template} is not made: pods of namespace {pod.namespace} use {most} "
        "others, no more are allowed (--most-templates): use fewer different requests, or names of "
        "containers"
    )


def refused(pod: ClaimedPod, refusal: str) -> str:
    """Return why a pod waits whose template the API server refuses, such as by a quota."""
    return f"template {pod.template}: the API server refuses it: {refusal}"
