"""What pods name and which templates there are; decides what to write. No I/O.

Specs are not kept: a hostile namespace may have thousands of pods with long wishes. A template's
name is the hash of its spec, so it shows alone whether it is right.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from contract.claims import (
    CLAIM,
    SHAPE_LABEL,
    has_shape,
    is_template_name,
    named_template,
    shape_of,
    template_name,
)
from contract.names import Names

Key: TypeAlias = tuple[str, str]
"""Namespace and name of a template."""


@dataclass(frozen=True, slots=True)
class ClaimedPod:
    """A pod that names a template of ours.

    Attributes:
        namespace: the pod's.
        name: the pod's.
        uid: the pod's.
        template: the template that it names.
        own: the template that its own limits need, empty if they need none; ``None`` if the pod
            waits for no claim: it has one, or is being deleted.
    """

    namespace: str
    name: str
    uid: str
    template: str
    own: str | None = None

    @property
    def key(self) -> Key:
        """The template that it names."""
        return self.namespace, self.template


@dataclass(frozen=True, slots=True)
class KnownTemplate:
    """A template with a name of ours.

    Attributes:
        key: its namespace and name.
        uid: its UID.
        is_right: whether its spec, which nobody can change, is what its name says.
        is_labelled: whether it has our label. Without it, somebody wants to keep it.
    """

    key: Key
    uid: str
    is_right: bool
    is_labelled: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, each part in its order.

    Attributes:
        create: the missing templates, each with the pods that wait for it.
        replace: templates whose spec is not what their name says.
        sweep: templates that no pod has named for long, or at all where others need room.
        differing: pods that wait for another template than their limits need.
        above_cap: pods that wait for a template in a namespace with too many.
    """

    create: dict[Key, list[ClaimedPod]] = field(default_factory=dict)
    replace: dict[Key, KnownTemplate] = field(default_factory=dict)
    sweep: list[KnownTemplate] = field(default_factory=list)
    differing: list[ClaimedPod] = field(default_factory=list)
    above_cap: list[ClaimedPod] = field(default_factory=list)


class TemplateState:
    """Pods and templates as the watches show them. Thread-safe.

    Attributes:
        changed: set at each change.
    """

    def __init__(self, names: Names) -> None:
        self.changed = threading.Event()
        self._names = names
        self._lock = threading.Lock()
        # By UID: a template of the same name may follow at once, before the next plan.
        self._pods: dict[str, ClaimedPod] = {}
        self._waiting: dict[str, ClaimedPod] = {}
        self._templates: dict[str, KnownTemplate] = {}
        self._unused_since: dict[str, float] = {}
        self._users = Counter[Key]()
        self._named: set[Key] = set()  # since the last plan

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of pods that name a template, of those that wait, and of templates."""
        return len(self._pods), len(self._waiting), len(self._templates)

    def read_pod(self, obj: Mapping[str, Any]) -> ClaimedPod | None:
        """Read a pod; ``None`` if it names no template of ours."""
        template = named_template(obj)
        if not template:
            return None
        metadata, status = obj["metadata"], obj.get("status") or {}
        claims = status.get("resourceClaimStatuses") or ()
        # Kubernetes makes no claim for a pod that is being deleted.
        waits = not metadata.get("deletionTimestamp") and all(
            each.get("name") != CLAIM for each in claims
        )
        own = template_name(obj, self._names) if waits else None
        return ClaimedPod(metadata["namespace"], metadata["name"], metadata["uid"], template, own)

    def replace(
        self, kind: type[ClaimedPod | KnownTemplate], listed: Iterable[ClaimedPod | KnownTemplate]
    ) -> None:
        """Replace all pods, or all templates, by those of a new list."""
        with self._lock:
            known = self._pods if kind is ClaimedPod else self._templates
            for uid in tuple(known):
                self._drop(uid)
            for each in listed:
                self._put(each)
        self.changed.set()

    def put(self, found: ClaimedPod | KnownTemplate) -> None:
        """Add a pod or a template, or replace it."""
        with self._lock:
            self._drop(found.uid)
            self._put(found)
        self.changed.set()

    def drop(self, uid: str) -> None:
        """Forget a pod that has ended, or a template that was deleted, if it is known."""
        with self._lock:
            is_known = self._drop(uid)
        if is_known:
            self.changed.set()

    def plan(self, now: float, *, most: int, unused: float) -> Plan:
        """Decide what to write: at most *most* templates of a namespace.

        One that no pod has named for *unused* seconds is swept; *now* is in monotonic seconds.
        """
        plan = Plan()
        with self._lock:
            templates = {each.key: each for each in self._templates.values()}
            counts = Counter(namespace for namespace, _ in templates)
            for pod in self._waiting.values():
                known = templates.get(pod.key)
                if pod.own != pod.template:
                    plan.differing.append(pod)
                elif known is not None:
                    if not known.is_right:
                        plan.replace[pod.key] = known
                elif pod.key in plan.create:
                    plan.create[pod.key].append(pod)
                elif counts[pod.namespace] >= most:
                    plan.above_cap.append(pod)
                else:
                    counts[pod.namespace] += 1
                    plan.create[pod.key] = [pod]
            self._find_unused(now, unused, plan)
        return plan

    def _put(self, found: ClaimedPod | KnownTemplate) -> None:
        if isinstance(found, KnownTemplate):
            self._templates[found.uid] = found
            return
        self._pods[found.uid] = found
        self._users[found.key] += 1
        self._named.add(found.key)
        if found.own is not None:
            self._waiting[found.uid] = found

    def _drop(self, uid: str) -> bool:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._waiting.pop(uid, None)
            self._users[pod.key] -= 1
        return pod is not None or self._templates.pop(uid, None) is not None

    def _find_unused(self, now: float, unused: float, plan: Plan) -> None:
        """Find templates to sweep: sooner in a namespace where a pod waits for room."""
        crowded = {pod.namespace for pod in plan.above_cap}
        self._users += Counter()  # keys without users go
        before = self._unused_since
        self._unused_since = {
            uid: before.get(uid, now) if each.key not in self._named else now
            for uid, each in self._templates.items()
            if not self._users[each.key] and each.is_labelled
        }
        self._named.clear()
        plan.sweep.extend(
            self._templates[uid]
            for uid, since in self._unused_since.items()
            if now - since >= unused or self._templates[uid].key[0] in crowded
        )
        crowded.difference_update(each.key[0] for each in plan.sweep)
        plan.above_cap[:] = [pod for pod in plan.above_cap if pod.namespace in crowded]


def read_template(obj: Mapping[str, Any]) -> KnownTemplate | None:
    """Read a template; ``None`` if its name is none of ours."""
    metadata = obj["metadata"]
    name = metadata["name"]
    if not is_template_name(name):
        return None
    labels = metadata.get("labels") or {}
    return KnownTemplate(
        (metadata["namespace"], name),
        metadata["uid"],
        is_right=has_shape(name, obj.get("spec")),
        is_labelled=labels.get(SHAPE_LABEL) == shape_of(name),
    )
