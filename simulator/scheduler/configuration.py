"""The parts of a KubeSchedulerConfiguration that are simulated. Pure.

A field that is not known is refused, as kube-scheduler refuses what is misspelt.
"""

from collections.abc import Collection
from dataclasses import dataclass

from simulator.manifests import Json

API_VERSION = "kubescheduler.config.k8s.io/v1"
_KNOWN = ("apiVersion", "kind", "clientConnection", "leaderElection", "extenders", "profiles")
_KNOWN_OF_EXTENDER = (
    *("urlPrefix", "weight", "enableHTTPS", "tlsConfig", "httpTimeout", "nodeCacheCapable"),
    *("filterVerb", "prioritizeVerb", "bindVerb", "managedResources", "ignorable"),
)


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """The entry of ``extenders``.

    Attributes:
        url: what verbs are appended to, without a slash at its end.
        weight: what its scores are multiplied by.
        managed: resources that make a pod its business.
        ca_file: who has signed its certificate; empty for http.
        server_name: whose certificate it must be, where that is not the URL's host.
        timeout_s: between two bytes of an answer.
        filter_verb, prioritize_verb, bind_verb: empty for what it does not do.
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
    """What a scheduler is told: the ``schedulerName`` of its pods, and its extender, if any."""

    names: frozenset[str] = frozenset({"default-scheduler"})
    extender: ExtenderSettings | None = None


def parse_configuration(document: Json) -> SchedulerSettings:
    """Read a decoded KubeSchedulerConfiguration.

    Raises:
        ValueError: a field is not known, or there are several extenders.
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


def _extender(entry: Json, at: str) -> ExtenderSettings:
    _check(entry, _KNOWN_OF_EXTENDER, at)
    tls = entry.get("tlsConfig") or {}
    _check(tls, ("serverName", "caFile"), f"{at}tlsConfig.")
    managed = entry.get("managedResources") or []
    for each in managed:
        _check(each, ("name",), f"{at}managedResources[].")
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


def _check(entry: Json, known: Collection[str], at: str) -> None:
    for key in entry:
        if key not in known:
            raise ValueError(f'strict decoding error: unknown field "{at}{key}"')
