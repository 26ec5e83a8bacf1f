"""The simulated parts of a KubeSchedulerConfiguration. Pure.

An unknown field is an error, as in kube-scheduler.
"""

from collections.abc import Collection
from dataclasses import dataclass

from simulator.manifests import Json

API_VERSION = "kubescheduler.config.k8s.io/v1"
_KNOWN = ("apiVersion", "kind", "clientConnection", "leaderElection", "extenders", "profiles")
_KNOWN_OF_EXTENDER = (
    *("urlPrefix", "weight", "enableHTTPS", "tlsConfig", "httpTimeout", "nodeCacheCapable"),
    *("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb", "managedResources", "ignorable"),
)


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """The entry of ``extenders``.

    Attributes:
        url: the base URL of the verbs, without a slash prefix its end.
        weight: factor of its scores.
        managed: a pod with one of these resources is sent to the extender.
        ca_file: the CA of its certificate; empty for http.
        server_name: the name in its certificate; empty for the URL's host.
        timeout_s: longest time between two bytes of a response, in seconds.
        filter_verb, prioritize_verb, bind_verb: empty if the extender does not support it.
    """

    url: str
    weight: int
    managed: frozenset[str]
    ca_file: str
    server_name: str
    timeout_s: float
    filter_verb: str
    prioritize_verb: str
    bind_verb: str


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of a scheduler.

    Attributes:
        names: the ``schedulerName`` values of its pods.
        extender: its extender, if it has one.
    """

    names: frozenset[str] = frozenset({"default-scheduler"})
    extender: ExtenderSettings | None = None


def parse_configuration(document: Json) -> SchedulerSettings:
    """Parse a decoded KubeSchedulerConfiguration.

    Raises:
        ValueError: a field is unknown, or there are several extenders.
    """
    _check(document, _KNOWN, "")
    extenders = document.get("extenders") or []
    if len(extenders) > 1:
        raise ValueError("extenders: more than one is not simulated")
    profiles = document.get("profiles") or [{}]
    return SchedulerSettings(
        names=frozenset(each.get("schedulerName", "default-scheduler") for each in profiles),
        extender=_extender(extenders[0], "extenders[0].") if extenders else None,
    )


def _extender(entry: Json, prefix: str) -> ExtenderSettings:
    _check(entry, _KNOWN_OF_EXTENDER, prefix)
    tls = entry.get("tlsConfig") or {}
    _check(tls, ("serverName", "caFile"), f"{prefix}tlsConfig.")
    managed = entry.get("managedResources") or []
    for each in managed:
        _check(each, ("name",), f"{prefix}managedResources[].")
    return ExtenderSettings(
        url=entry["urlPrefix"].rstrip("/"),
        weight=entry.get("weight", 0),
        managed=frozenset(each["name"] for each in managed),
        ca_file=tls.get("caFile", ""),
        server_name=tls.get("serverName", ""),
        timeout_s=float(entry.get("httpTimeout", "5s").removesuffix("s")),
        filter_verb=entry.get("filterVerb", ""),
        prioritize_verb=entry.get("prioritizeVerb", ""),
        bind_verb=entry.get("bindVerb", ""),
    )


def _check(entry: Json, known: Collection[str], prefix: str) -> None:
    for key in entry:
        if key not in known:
            raise ValueError(f'strict decoding error: unknown field "{prefix}{key}"')
