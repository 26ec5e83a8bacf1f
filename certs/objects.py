"""Secrets and webhook configurations: parsed from JSON and written to JSON. Pure.

A Secret is ours if it has our label. A stamp is a time in an annotation. It is written in the
same request as the content that it dates, so it always matches that content.
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
"""Annotations that make cert-manager write a ``caBundle``."""


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
        name: its name.
        origin: its owner.
        pair: certificate and key; ``None`` if they cannot be used.
        certificate: the content of the pair's certificate; ``None`` without a pair.
        problem: why there is no pair.
        trusted: the authorities in ``ca.crt`` of the Secret that the webhook mounts.
        since: when its certificate was written; ``None`` if unknown.
        obj: the Secret as it was read, with its key; empty if it does not exist.
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
        name: its name.
        version: its resourceVersion.
        bundles: for each of its webhooks the authorities in ``caBundle``.
        changed: when we changed them last; ``None`` if unknown.
        annotated: whether it has annotations at all.
        injector: the annotation that makes cert-manager write ``caBundle``; empty without one.
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
        configurations: the webhook configurations that exist.
        missing: kind and name of those that are missing.
    """

    authority: Secret
    serving: Secret
    configurations: tuple[Configuration, ...]
    missing: tuple[str, ...] = ()


Served: TypeAlias = Mapping[str, Certificate | None]
"""The certificate that each address serves; ``None`` if it does not respond."""


def parse_secret(name: str, purpose: Purpose, obj: Json | None) -> Secret:
    """Read a Secret; *obj* is ``None`` if it does not exist."""
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
    """Return a usable pair and its certificate, or why there is none."""
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
    """Make an empty Secret, with the labels by which *component* is deleted."""
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
    """Copy a Secret with *data*, its stamp unless *since* is ``None``, and our label.

    Everything else stays.
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
    """Make the JSON patch that sets the same ``caBundle`` for all webhooks of a configuration.

    It has the configuration's version, so the API server rejects it after any other change.
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
    """Write a time for an annotation: RFC 3339 in UTC, whole seconds.

    It is rounded up, so that no wait from this time is too short.
    """
    if moment.microsecond:
        moment = moment.replace(microsecond=0) + timedelta(seconds=1)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _decode(text: object) -> bytes:
    """Decode base64; empty if it is invalid."""
    try:
        return base64.b64decode(str(text or ""), validate=True)
    except ValueError:
        return b""


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _stamp(metadata: Json, annotation: str) -> datetime | None:
    """Read a stamp; ``None`` if it is not a time with a time zone, as we write it."""
    try:
        moment = datetime.fromisoformat(str((metadata.get("annotations") or {}).get(annotation)))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
