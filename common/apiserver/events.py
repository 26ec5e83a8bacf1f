"""Kubernetes Events, core/v1."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from common.apiserver.client import Client, Json, object_path
from common.text import cut

_COMPONENT = "gpu-turnstile"
_LONGEST_MESSAGE = 1024
"""The longest message that the API server accepts (``events.k8s.io`` validation)."""


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The object that an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Notice:
    """The content of an Event: a reason in one word, for machines and columns, and a sentence."""

    subject: EventSubject
    reason: str
    message: str
    warning: bool = True

    @property
    def namespace(self) -> str:
        """The namespace of its Event: of objects without one it is the default namespace."""
        return self.subject.namespace or "default"


def create(  # noqa: PLR0913 -- what an Event has, by keyword
    client: Client,
    notice: Notice,
    *,
    node: str = "",
    count: int = 1,
    at: float,
    timeout: float = 10.0,
) -> None:
    """Create the Event of a notice, see :func:`describe`; one that exists is a conflict (409).

    Raises:
        Gone: 410.
        Rejected: another 4xx except 429.
        Unavailable: no usable response in *timeout* seconds.
    """
    event = describe(notice, node=node, count=count, at=at)
    client.call("POST", object_path("events", notice.namespace), event, timeout=timeout)


def describe(notice: Notice, *, node: str = "", count: int, at: float) -> Json:
    """Make the event object, core/v1, of a notice that was last reported *at* so many Unix seconds.

    Its name is a hash of its content, so an equal notice is the same Event. The *node* is the one
    whose agent reports it; empty for a program without a node.
    """
    subject = notice.subject
    text = "\0".join((subject.kind, subject.uid, notice.reason, notice.message, node))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reference = {
        "apiVersion": "v1",
        "kind": subject.kind,
        "name": subject.name,
        "uid": subject.uid,
        **({"namespace": subject.namespace} if subject.namespace else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{subject.name[:200].rstrip('-.')}.{digest}"},
        "involvedObject": reference,
        "reason": notice.reason,
        "message": cut(notice.message, _LONGEST_MESSAGE),
        "type": "Warning" if notice.warning else "Normal",
        "source": {"component": _COMPONENT, **({"host": node} if node else {})},
        "reportingComponent": _COMPONENT,
        "reportingInstance": node or _COMPONENT,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": count,
    }
