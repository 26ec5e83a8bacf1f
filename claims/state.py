"""What pods name and which templates there are; decides what to write. No I/O."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from contract.claims import (
    CLAIM,
    SHAPE_LABEL,
    is_template_name,
    named_template,
    read_pod_claim,
    shape_of,
)
from contract.names import Names
from contract.quantity import parse_quantity

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
        own: the template that its own limits need; empty if they need none.
        spec: that template's spec, while the pod waits for its claim.
    """

    namespace: str
    name: str
    uid: str
    template: str
    own: str = ""
    spec: Mapping[str, Any] | None = None

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
        spec: its spec, which nobody can change.
        is_labelled: whether it has our label. Without it, somebody wants to keep it.
    """

    key: Key
    uid: str
    spec: Mapping[str, Any]
    is_labelled: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, each part in its order.

    Attributes:
        create: for each missing template, a pod that waits for it.
        replace: templates whose spec is not what their name says.
        sweep: templates that no pod has named for long.
        differing: pods that wait for another template than their limits need.
        above_cap: pods that wait for a template in a namespace with too many.
    """

    create: dict[Key, ClaimedPod] = field(default_factory=dict)
    replace: list[KnownTemplate] = field(default_factory=list)
    sweep: list[KnownTemplate] = field(default_factory=list)
    differing: list[ClaimedPod] = field(default_factory=list)
    above_cap: list[ClaimedPod] = field(default_factory=list)


class TemplateState:
    """Pods and templates as the watches show them. Thread-safe.

    Attributes:
        changed: set at each change.
    """

    def __init__(self, names: Names) -> None:
        """Start empty."""
        self.changed = threading.Event()
        self._names = names
        self._lock = threading.Lock()
        self._pods: dict[str, ClaimedPod] = {}
        self._waiting: dict[str, ClaimedPod] = {}  # those of them without a claim
        self._users = Counter[Key]()
        self._templates: dict[Key, KnownTemplate] = {}
        self._unused_since: dict[Key, float] = {}

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of pods that name a template, of those that wait, and of templates."""
        return len(self._pods), len(self._waiting), len(self._templates)

    def replace_pods(self, listed: Iterable[ClaimedPod]) -> None:
        """Replace all pods by those of a new list."""
        with self._lock:
            self._pods, self._waiting, self._users = {}, {}, Counter()
            for each in listed:
                self._put(each)
        self.changed.set()

    def put_pod(self, pod: ClaimedPod) -> None:
        """Add a pod, or replace it."""
        with self._lock:
            self._drop(pod.uid)
            self._put(pod)
        self.changed.set()

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that has ended, if it is known."""
        with self._lock:
            is_known = self._drop(uid)
        if is_known:
            self.changed.set()

    def replace_templates(self, listed: Iterable[KnownTemplate]) -> None:
        """Replace all templates by those of a new list."""
        with self._lock:
            self._templates = {each.key: each for each in listed}
        self.changed.set()

    def put_template(self, template: KnownTemplate) -> None:
        """Add a template, or replace it."""
        with self._lock:
            self._templates[template.key] = template
        self.changed.set()

    def drop_template(self, key: Key) -> None:
        """Forget a template that was deleted."""
        with self._lock:
            self._templates.pop(key, None)
        self.changed.set()

    def plan(self, now: float, *, most: int, unused: float) -> Plan:
        """Decide what to write.

        Args:
            now: monotonic seconds.
            most: most templates of a namespace.
            unused: seconds after which a template that no pod names is swept.
        """
        plan, done = Plan(), set[Key]()
        with self._lock:
            counts = Counter(namespace for namespace, _ in self._templates)
            for pod in self._waiting.values():
                if pod.key in done:
                    continue  # another pod waits for the same template
                known = self._templates.get(pod.key)
                if pod.own != pod.template:
                    plan.differing.append(pod)
                elif known is None and counts[pod.namespace] >= most:
                    plan.above_cap.append(pod)
                else:
                    done.add(pod.key)
                    if known is None:
                        counts[pod.namespace] += 1
                        plan.create[pod.key] = pod
                    elif not _has(known.spec, pod.spec):
                        plan.replace.append(known)
            self._find_unused(now, unused, plan)
        return plan

    def read_pod(self, obj: Mapping[str, Any]) -> ClaimedPod | None:
        """Read a pod; ``None`` if it names no template of ours."""
        template = named_template(obj)
        if not template:
            return None
        metadata = obj["metadata"]
        pod = ClaimedPod(metadata["namespace"], metadata["name"], metadata["uid"], template)
        status = obj.get("status") or {}
        if any(each.get("name") == CLAIM for each in status.get("resourceClaimStatuses") or ()):
            return pod
        claim = read_pod_claim(obj, self._names)
        own, spec = ("", {}) if claim is None else (claim.template, claim.spec)
        return ClaimedPod(pod.namespace, pod.name, pod.uid, template, own, spec)

    def _put(self, pod: ClaimedPod) -> None:
        self._pods[pod.uid] = pod
        self._users[pod.key] += 1
        self._unused_since.pop(pod.key, None)
        if pod.spec is not None:
            self._waiting[pod.uid] = pod

    def _drop(self, uid: str) -> bool:
        pod = self._pods.pop(uid, None)
        self._waiting.pop(uid, None)
        if pod is not None:
            self._users[pod.key] -= 1
        return pod is not None

    def _find_unused(self, now: float, unused: float, plan: Plan) -> None:
        self._users += Counter()  # keys without users go
        for key in self._unused_since.keys() - self._templates.keys():
            del self._unused_since[key]
        for key, template in self._templates.items():
            if not self._users[key] and template.is_labelled:
                since = self._unused_since.setdefault(key, now)
                if now - since >= unused:
                    plan.sweep.append(template)


def read_template(obj: Mapping[str, Any]) -> KnownTemplate | None:
    """Read a template; ``None`` if its name is none of ours."""
    metadata = obj["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    if not is_template_name(name):
        return None
    labels = metadata.get("labels") or {}
    is_labelled = labels.get(SHAPE_LABEL) == shape_of(name)
    return KnownTemplate((namespace, name), metadata["uid"], obj.get("spec") or {}, is_labelled)


def _has(found: object, wanted: object) -> bool:
    """Return whether a spec has all that ours has; the API server may add defaults.

    It also writes 16000 as ``16k``.
    """
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and _has(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(found) == len(wanted) and all(map(_has, found, wanted))
        )
    return found == wanted or (
        isinstance(wanted, str)
        and wanted.isdigit()
        and parse_quantity(found) == parse_quantity(wanted)
    )
