"""Secrets and webhook configurations: from their JSON, and back into it. Pure.

A Secret is ours when it has our label. A stamp is a time in an annotation, written
together with what it dates, so that one write can never come without the other.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeAlias

from certs.errors import ClusterError, InvalidCertificate
from certs.issue import KeyPair
from certs.reading import Certificate, read_bundle, read_pair, write_bundle

Json: TypeAlias = dict[str, Any]

LABEL = "app.kubernetes.io/managed-by"
LABEL_VALUE = "gpu-turnstile-certs"
PART_OF, COMPONENT = "app.kubernetes.io/part-of", "app.kubernetes.io/component"
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


class Kind(Enum):
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

    kind: Kind
    name: str
    version: str
    bundles: tuple[tuple[Certificate, ...], ...]
    changed: datetime | None = None
    annotated: bool = False
    injector: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


def parse_secret(name: str, purpose: Purpose, obj: Json | None) -> Secret:
    """Read a Secret; ``None`` is one that is not there.

    Raises:
        ClusterError: it is no Secret at all.
    """
    if obj is None:
        return Secret(name, Origin.ABSENT, problem="is not there")
    metadata = _mapping(obj, "metadata", f"secret {name}")
    labels = _mapping(metadata, "labels", f"secret {name}")
    annotations = _mapping(metadata, "annotations", f"secret {name}")
    data = _mapping(obj, "data", f"secret {name}")
    if labels.get(LABEL) == LABEL_VALUE:
        origin = Origin.OURS
    else:
        origin = Origin.FOREIGN if any(data.values()) else Origin.EMPTY
    _, certificate_key, key_key = purpose.value
    pair: KeyPair | None = None
    certificate: Certificate | None = None
    problem = ""
    try:
        pair = KeyPair(_decode(data, certificate_key), _decode(data, key_key))
        certificate = read_pair(pair)
        if certificate.is_authority != (purpose is Purpose.AUTHORITY):
            problem = "is the certificate of " + (
                "an authority" if certificate.is_authority else "no authority"
            )
    except InvalidCertificate as error:
        problem = str(error)
    if problem:
        pair = certificate = None
        problem = f"{certificate_key}: {problem}"
    trusted: tuple[Certificate, ...] = ()
    if purpose is Purpose.SERVING:
        trusted = _bundle(data.get("ca.crt"))
    since = _stamp(annotations.get(SERVING_SINCE))
    return Secret(name, origin, pair, certificate, problem, trusted, since, obj)


def parse_configuration(kind: Kind, name: str, obj: Json) -> Configuration:
    """Read a webhook configuration.

    Raises:
        ClusterError: it is none.
    """
    what = f"{kind.value} {name}"
    metadata = _mapping(obj, "metadata", what)
    annotations = _mapping(metadata, "annotations", what)
    webhooks = obj.get("webhooks") or []
    if not isinstance(webhooks, list):
        raise ClusterError(f"{what}: webhooks: must be a list")
    bundles = []
    for index, webhook in enumerate(webhooks):
        client = webhook.get("clientConfig") if isinstance(webhook, dict) else None
        if not isinstance(client, dict):
            raise ClusterError(f"{what}: webhooks[{index}].clientConfig: must be an object")
        bundles.append(_bundle(client.get("caBundle")))
    return Configuration(
        kind,
        name,
        str(metadata.get("resourceVersion", "")),
        tuple(bundles),
        _stamp(annotations.get(BUNDLE_CHANGED)),
        bool(annotations),
        next((each for each in INJECTORS if each in annotations), ""),
    )


def new_secret(name: str, namespace: str, purpose: Purpose, component: str = "certs") -> Json:
    """Make a Secret that holds nothing yet, with the labels by which *component* is deleted."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": purpose.value[0],
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {PART_OF: "gpu-turnstile", COMPONENT: component},
        },
    }


def with_authority(obj: Json, pair: KeyPair) -> Json:
    """Copy the Secret of the authority, with another one."""
    return _with(obj, {"ca.crt": pair.certificate, "ca.key": pair.key})


def with_serving(
    obj: Json, pair: KeyPair, *, trusted: Iterable[Certificate], now: datetime
) -> Json:
    """Copy the Secret that the webhook mounts, with another certificate, dated *now*."""
    data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": write_bundle(trusted)}
    return with_stamp(_with(obj, data), now)


def with_label(obj: Json) -> Json:
    """Copy a Secret, with our label."""
    metadata = obj["metadata"]
    labels = {**(metadata.get("labels") or {}), LABEL: LABEL_VALUE}
    return {**obj, "metadata": {**metadata, "labels": labels}}


def with_trusted(obj: Json, trusted: Iterable[Certificate]) -> Json:
    """Copy the Secret that the webhook mounts, with other authorities beside its certificate."""
    return {**obj, "data": {**obj["data"], "ca.crt": _encode(write_bundle(trusted))}}


def with_stamp(obj: Json, now: datetime) -> Json:
    """Copy the Secret that the webhook mounts, its certificate dated *now*."""
    metadata = obj["metadata"]
    annotations = {**(metadata.get("annotations") or {}), SERVING_SINCE: write_stamp(now)}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


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


def _with(obj: Json, data: Mapping[str, bytes]) -> Json:
    encoded = {key: _encode(value) for key, value in data.items()}
    return {**with_label(obj), "data": {**(obj.get("data") or {}), **encoded}}


def _mapping(parent: Json, field_name: str, what: str) -> Json:
    value = parent.get(field_name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ClusterError(f"{what}: {field_name}: must be an object")
    return value


def _bundle(text: object) -> tuple[Certificate, ...]:
    try:
        return read_bundle(_bytes(text or ""))
    except InvalidCertificate:
        return ()


def _decode(data: Json, key: str) -> bytes:
    try:
        return _bytes(data.get(key) or "")
    except InvalidCertificate as error:
        raise InvalidCertificate(f"{key} is not base64") from error


def _bytes(text: object) -> bytes:
    if not isinstance(text, str):
        raise InvalidCertificate("not a string")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidCertificate("not base64") from error


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _stamp(text: object) -> datetime | None:
    """Read a time; what is none was not written by us, and dates nothing."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
