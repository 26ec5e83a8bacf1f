"""Secrets and webhook configurations: from their JSON, and back into it. Pure.

A Secret is ours when it has our label. A stamp is a time in an annotation, written
together with what it dates, so that one write can never come without the other.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeAlias

from certs.errors import InvalidCertificate
from certs.issue import KeyPair
from certs.reading import Certificate, read_bundle, read_pair, write_bundle

Json: TypeAlias = dict[str, Any]

LABEL = "app.kubernetes.io/managed-by"
LABEL_VALUE = "gpu-turnstile-certs"
SERVING_SINCE = "gpu-turnstile/serving-since"
BUNDLE_CHANGED = "gpu-turnstile/bundle-changed"
INJECTORS = (
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "cert-manager.io/inject-apiserver-ca",
)
"""Annotations by which cert-manager is told to write a ``caBundle``."""


class Purpose(Enum):
    """The purpose of a Secret: its type, and the names of its certificate and key."""

    AUTHORITY = ("Opaque", "ca.crt", "ca.key")
    SERVING = ("kubernetes.io/tls", "tls.crt", "tls.key")


class WebhookKind(Enum):
    """The kinds of webhook configurations."""

    MUTATING = "mutatingwebhookconfiguration"
    VALIDATING = "validatingwebhookconfiguration"


class Origin(Enum):
    """The owner of a Secret."""

    ABSENT = "absent"
    EMPTY = "empty"
    OURS = "ours"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Secret:
    """The content of a Secret.

    Attributes:
        name: its own.
        origin: whose it is.
        pair: certificate and key; ``None`` when they cannot be used.
        certificate: what the certificate of the pair says; ``None`` with it.
        problem: why there is no pair.
        trusted: the authorities in ``ca.crt`` of the Secret that the webhook mounts.
        since: when its certificate was written; ``None`` when that is not known.
        obj: the Secret as it was read, with its key; empty when it is not there.
    """

    name: str
    origin: Origin
    pair: KeyPair | None = None
    certificate: Certificate | None = None
    problem: str = ""
    trusted: tuple[Certificate, ...] = ()
    since: datetime | None = None
    obj: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The authorities that a webhook configuration trusts.

    Attributes:
        kind: mutating or validating.
        name: its own.
        version: its resourceVersion.
        bundles: for each of its webhooks the authorities in ``caBundle``.
        changed: when we changed them last; ``None`` when that is not known.
        annotated: whether it has annotations at all.
        injector: the annotation by which somebody else writes ``caBundle``; empty if none.
    """

    kind: WebhookKind
    name: str
    version: str
    bundles: tuple[tuple[Certificate, ...], ...]
    changed: datetime | None = None
    annotated: bool = False
    injector: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class ObservedObjects:
    """The objects, as they were read.

    Attributes:
        authority: the Secret of the authority.
        serving: the Secret that the webhook mounts.
        configurations: those that are there.
        missing: those that should be there and are not.
    """

    authority: Secret
    serving: Secret
    configurations: tuple[Configuration, ...]
    missing: tuple[str, ...] = ()


Served: TypeAlias = Mapping[str, Certificate | None]
"""What is served at each address; ``None`` where nobody answers."""


def parse_secret(name: str, purpose: Purpose, obj: Json | None) -> Secret:
    """Read a Secret; ``None`` is one that is not there."""
    if obj is None:
        return Secret(name, Origin.ABSENT, problem="is not there")
    metadata, data = obj.get("metadata") or {}, obj.get("data") or {}
    if (metadata.get("labels") or {}).get(LABEL) == LABEL_VALUE:
        origin = Origin.OURS
    else:
        origin = Origin.FOREIGN if any(data.values()) else Origin.EMPTY
    pair, certificate, problem = _read_pair(purpose, data)
    is_serving = purpose is Purpose.SERVING
    trusted = read_bundle(_decode(data.get("ca.crt"))) if is_serving else ()
    since = _stamp(metadata, SERVING_SINCE)
    return Secret(name, origin, pair, certificate, problem, trusted, since, obj)


def _read_pair(purpose: Purpose, data: Json) -> tuple[KeyPair | None, Certificate | None, str]:
    """Return a pair that can be used and its certificate, or why there is none."""
    _, certificate_key, key_key = purpose.value
    try:
        pair = KeyPair(_decode(data.get(certificate_key)), _decode(data.get(key_key)))
        certificate = read_pair(pair)
    except InvalidCertificate as error:
        return None, None, f"{certificate_key}: {error}"
    if certificate.is_authority is not (purpose is Purpose.AUTHORITY):
        found = "an authority" if certificate.is_authority else "no authority"
        return None, None, f"{certificate_key}: is the certificate of {found}"
    return pair, certificate, ""


def parse_configuration(kind: WebhookKind, name: str, obj: Json) -> Configuration:
    """Read a webhook configuration."""
    metadata = obj.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    return Configuration(
        kind,
        name,
        str(metadata.get("resourceVersion", "")),
        tuple(
            read_bundle(_decode(each["clientConfig"].get("caBundle")))
            for each in obj.get("webhooks") or ()
        ),
        _stamp(metadata, BUNDLE_CHANGED),
        bool(annotations),
        next((each for each in INJECTORS if each in annotations), ""),
    )


def new_secret(name: str, purpose: Purpose, *, namespace: str, component: str = "certs") -> Json:
    """Make a Secret that holds nothing yet, with the labels by which *component* is deleted."""
    labels = {"app.kubernetes.io/part-of": "gpu-turnstile"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": purpose.value[0],
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**labels, "app.kubernetes.io/component": component},
        },
    }


def changed(obj: Json, data: Mapping[str, bytes], *, since: datetime | None = None) -> Json:
    """Copy a Secret, with our label and other data; whatever else it has is kept.

    Args:
        obj: the Secret.
        data: what is replaced.
        since: dates the certificate; ``None`` keeps the date it has.
    """
    metadata = obj["metadata"]
    labels = {**(metadata.get("labels") or {}), LABEL: LABEL_VALUE}
    metadata = {**metadata, "labels": labels}
    if since is not None:
        annotations = {**(metadata.get("annotations") or {}), SERVING_SINCE: write_stamp(since)}
        metadata = {**metadata, "annotations": annotations}
    encoded = {key: _encode(value) for key, value in data.items()}
    return {**obj, "metadata": metadata, "data": {**(obj.get("data") or {}), **encoded}}


def bundle_patch(
    configuration: Configuration, trusted: Iterable[Certificate], now: datetime
) -> list[Json]:
    """Make the JSON patch that gives all webhooks of a configuration the same ``caBundle``.

    It names the version it is for: a configuration that has changed since refuses it.
    """
    bundle = _encode(write_bundle(trusted))
    stamp = write_stamp(now)
    path = "/metadata/annotations"
    if configuration.annotated:
        mark: Json = {"path": f"{path}/{BUNDLE_CHANGED.replace('/', '~1')}", "value": stamp}
    else:
        mark = {"path": path, "value": {BUNDLE_CHANGED: stamp}}
    return [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": configuration.version},
        {"op": "add", **mark},
        *(
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
            for index in range(len(configuration.bundles))
        ),
    ]


def write_stamp(moment: datetime) -> str:
    """Write a time as annotations carry it: RFC 3339 in UTC, whole seconds.

    It is rounded up: who waits from then on must not wait a moment too short.
    """
    if moment.microsecond:
        moment = moment.replace(microsecond=0) + timedelta(seconds=1)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _decode(text: object) -> bytes:
    """Read base64; what is none holds nothing."""
    try:
        return base64.b64decode(str(text or ""), validate=True)
    except ValueError:
        return b""


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _stamp(metadata: Json, annotation: str) -> datetime | None:
    """Read a time; what is none was not written by us, and dates nothing."""
    try:
        moment = datetime.fromisoformat(str((metadata.get("annotations") or {}).get(annotation)))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
