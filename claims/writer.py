"""Carries out what the state decides: creates and deletes templates, and says why pods wait."""

import logging
import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from claims.cluster import ClaimsApi
from claims.metrics import Metrics
from claims.state import ClaimedPod, Key, KnownTemplate, Plan, TemplateState
from common.apiserver.client import Json
from common.apiserver.errors import Gone, Rejected
from common.apiserver.events import EventSubject, Notice, describe
from common.backoff import Backoff, pause_after
from common.errors import Unavailable
from contract.claims import SHAPE_LABEL, shape_of

log = logging.getLogger(__name__)

REASON = "GPUClaimWaits"
"""The Events of pods whose template is not made."""

_PASS_SECONDS = 10.0
_SHOWN_SECONDS = 10.0
"""After this time a template that was made, and that the watch does not show, is made again."""
_OUTAGE_SECONDS = (0.2, 2.0)
_FAILED_SECONDS = (0.2, 30.0)
_REFUSED_SECONDS = (1.0, 300.0)
_MOST_FAILURES = 3
"""After so many creations without a response in one pass the API server counts as unavailable."""
_MOST_NOTICES = 20
"""Most Events in one pass: creating templates must not wait for those of a hostile namespace."""


class TemplateWriter:
    """Creates and deletes templates. :meth:`run` belongs to one thread."""

    def __init__(  # noqa: PLR0913 - bounds, by keyword
        self,
        state: TemplateState,
        api: ClaimsApi,
        metrics: Metrics,
        *,
        most: int,
        unused: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            state: decides what to write.
            api: the API server.
            metrics: counts requests.
            most: most templates of a namespace.
            unused: seconds after which a template that no pod names is swept.
            clock: monotonic seconds.
        """
        self._state = state
        self._api = api
        self._metrics = metrics
        self._most = most
        self._unused = unused
        self._clock = clock
        self._not_before: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._refusals: dict[Key, str] = {}
        self._said: dict[Notice, None] = {}

    def run(self, stop: threading.Event, in_step: Callable[[], bool]) -> None:
        """Write what is decided, at each change and every ten seconds at least, until *stop*."""
        pauses = Backoff(*_OUTAGE_SECONDS)
        while not stop.is_set():
            now = self._clock()
            due = min((each - now for each in self._not_before.values()), default=_PASS_SECONDS)
            self._state.changed.wait(min(max(due, 0.0), _PASS_SECONDS))
            self._state.changed.clear()
            if stop.is_set() or not in_step():
                continue
            try:
                self.write()
                pauses.reset()
            except Unavailable as error:
                log.warning("templates wait", extra={"reason": str(error)})
                stop.wait(pauses.next())
                self._state.changed.set()

    def write(self) -> None:
        """Write what is decided now.

        Raises:
            Unavailable: the API server cannot be reached; the rest is left for the next call.
        """
        plan = self._state.plan(self._clock(), most=self._most, unused=self._unused)
        for key in self._not_before.keys() - plan.create.keys():
            del self._not_before[key]
            self._failures.pop(key, None)
            self._refusals.pop(key, None)
        failed = 0
        # One that fails again and again, by another webhook of its namespace, holds up no others.
        for key, pod in sorted(plan.create.items(), key=lambda it: self._failures.get(it[0], 0)):
            if self._clock() >= self._not_before.get(key, 0.0):
                try:
                    self._create(key, pod)
                except Unavailable:
                    self._metrics.wrote("unavailable")
                    self._hold(key, _FAILED_SECONDS)
                    failed += 1
                    if failed == _MOST_FAILURES:
                        raise
        for template in plan.replace:
            self._delete(template, "replaced")
        for template in plan.sweep:
            self._delete(template, "swept")
        self._say(plan)

    def _create(self, key: Key, pod: ClaimedPod) -> None:
        where = {"template": "/".join(key), "pod": f"{pod.namespace}/{pod.name}"}
        try:
            self._api.create_template(pod.namespace, template_of(pod))
        except Rejected as error:
            if error.status != HTTPStatus.CONFLICT:
                self._hold(key, _REFUSED_SECONDS)
                self._refusals[key] = str(error)
                self._metrics.wrote("refused")
                log.warning("template refused", extra={**where, "reason": str(error)})
                return
            self._metrics.wrote("found")  # another replica was faster
        else:
            self._metrics.wrote("created")
            log.info("template created", extra=where)
        self._not_before[key] = self._clock() + _SHOWN_SECONDS

    def _hold(self, key: Key, bounds: tuple[float, float]) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._not_before[key] = self._clock() + pause_after(failures, *bounds)

    def _delete(self, template: KnownTemplate, result: str) -> None:
        namespace, name = template.key
        try:
            self._api.delete_template(namespace, name, template.uid)
        except (Rejected, Gone) as error:
            if isinstance(error, Rejected) and error.status == HTTPStatus.FORBIDDEN:
                self._metrics.wrote("refused")
                log.warning(
                    "template refused",
                    extra={"template": f"{namespace}/{name}", "reason": str(error)},
                )
            return  # else another replica was faster
        self._metrics.wrote(result)
        log.info("template deleted", extra={"template": f"{namespace}/{name}", "reason": result})

    def _say(self, plan: Plan) -> None:
        """Write Events on pods that wait, each once."""
        texts: dict[Notice, None] = {}
        for pod in plan.differing:
            texts[_notice(pod, differing(pod))] = None
        for pod in plan.above_cap:
            texts[_notice(pod, above_cap(pod, self._most))] = None
        for key, pod in plan.create.items():
            if key in self._refusals:
                text = f"template {pod.template}: the API server refuses it: {self._refusals[key]}"
                texts[_notice(pod, text)] = None
        self._said = {each: None for each in self._said if each in texts}
        new = [each for each in texts if each not in self._said]
        for notice in new[:_MOST_NOTICES]:
            try:
                event = describe(notice, count=1, at=time.time())
                self._api.create_event(notice.subject.namespace, event)
            except (Rejected, Gone) as error:  # by another replica already, or not allowed
                log.debug("event not written", extra={"reason": str(error)})
            self._said[notice] = None
        if len(new) > _MOST_NOTICES:
            self._state.changed.set()


def template_of(pod: ClaimedPod) -> Json:
    """Return the ResourceClaimTemplate that a waiting pod needs."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": pod.own,
            "namespace": pod.namespace,
            "labels": {SHAPE_LABEL: shape_of(pod.own)},
        },
        "spec": dict(pod.spec or {}),
    }


def differing(pod: ClaimedPod) -> str:
    """Return why a pod whose limits need another template than it names waits."""
    needs = f"its limits need {pod.own}" if pod.own else "its limits need none"
    return (
        f"template {pod.template} is not made: {needs}. Limits or annotations were changed after "
        "the webhook's call, or the claim was copied: delete the pod, and create it without claim"
    )


def above_cap(pod: ClaimedPod, most: int) -> str:
    """Return why a pod in a namespace with too many templates waits."""
    return (
        f"template {pod.template} is not made: namespace {pod.namespace} has {most} templates, no "
        "more are allowed (--most-templates): use fewer different requests, unused ones are "
        "deleted later"
    )


def _notice(pod: ClaimedPod, text: str) -> Notice:
    return Notice(EventSubject("Pod", pod.namespace, pod.name, pod.uid), REASON, text)
