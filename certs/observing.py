"""The objects of a rotation, read as they were at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from certs.errors import Conflict
from certs.objects import (
    Configuration,
    Json,
    Kind,
    Purpose,
    Secret,
    parse_configuration,
    parse_secret,
)
from certs.reading import Certificate
from certs.settings import Settings

_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects at one moment.

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


class Cluster(Protocol):
    """The API server. Objects are JSON, with the resourceVersion they were read at."""

    def get_secret(self, name: str) -> Json | None:
        """Read a Secret; ``None`` when there is none."""
        ...

    def create_secret(self, obj: Json) -> None:
        """Create a Secret.

        Raises:
            Conflict: it is there.
        """
        ...

    def replace_secret(self, name: str, obj: Json) -> None:
        """Replace a Secret.

        Raises:
            Conflict: it has changed since it was read.
        """
        ...

    def get_configuration(self, kind: Kind, name: str) -> Json | None:
        """Read a webhook configuration; ``None`` when there is none."""
        ...

    def patch_configuration(self, kind: Kind, name: str, patch: list[Json]) -> None:
        """Apply a JSON patch to a webhook configuration.

        Raises:
            Conflict: it has changed since it was read.
        """
        ...


Objects: TypeAlias = tuple[Json | None, ...]
"""Both Secrets, and all configurations in the order of the settings."""


def observe(cluster: Cluster, settings: Settings) -> Observed:
    """Read everything as it was at one moment.

    Objects are read one by one, while another run may write: only what was the same in
    two rounds was surely there together.

    Raises:
        ClusterError: the API server refuses, or something is not what it should be.
        Conflict: there is no quiet moment.
    """
    before = _read(cluster, settings)
    for _ in range(_LOOKS):
        found = _read(cluster, settings)
        if list(map(_version, found)) == list(map(_version, before)):
            return _parse(found, settings)
        before = found
    raise Conflict("Secrets and webhook configurations change all the time")


def _read(cluster: Cluster, settings: Settings) -> Objects:
    return (
        cluster.get_secret(settings.ca_secret),
        cluster.get_secret(settings.tls_secret),
        *(cluster.get_configuration(kind, name) for kind, name in settings.configurations),
    )


def _version(obj: Json | None) -> tuple[str, str]:
    metadata = (obj or {}).get("metadata") or {}
    return str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))


def _parse(objects: Objects, settings: Settings) -> Observed:
    authority, serving, *configurations = objects
    named = list(zip(settings.configurations, configurations, strict=True))
    return Observed(
        parse_secret(settings.ca_secret, Purpose.AUTHORITY, authority),
        parse_secret(settings.tls_secret, Purpose.SERVING, serving),
        tuple(
            parse_configuration(kind, name, obj) for (kind, name), obj in named if obj is not None
        ),
        tuple(f"{kind.value} {name}" for (kind, name), obj in named if obj is None),
    )
