"""The parts of a KubeSchedulerConfiguration that are simulated. Pure.

Decoded strictly: what kube-scheduler would refuse, or decide otherwise than this one, is refused.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from simulator.manifests import Json

API_VERSION = "kubescheduler.config.k8s.io/v1"
_IGNORED = ("apiVersion", "kind", "clientConnection", "leaderElection")
_VERBS = ("filterVerb", "prioritizeVerb", "bindVerb")
_SECONDS = re.compile(r"([0-9]+)s")


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
    ca_file: str = ""
    server_name: str = ""
    timeout_s: float = 5.0
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a scheduler is told: the ``schedulerName`` of its pods, and its extender, if any."""

    names: frozenset[str] = frozenset({"default-scheduler"})
    extender: ExtenderSettings | None = None


def parse_configuration(document: Json) -> SchedulerSettings:
    """Read a decoded KubeSchedulerConfiguration.

    Raises:
        ValueError: kube-scheduler would refuse it, or it asks for what is not simulated.
    """
    _expect(document.get("kind") == "KubeSchedulerConfiguration", "kind: not a configuration")
    _expect(document.get("apiVersion") == API_VERSION, f"apiVersion: must be {API_VERSION}")
    _known(document, (*_IGNORED, "extenders", "profiles"), "")
    extenders = document.get("extenders") or []
    _expect(len(extenders) <= 1, "extenders: more than one is not simulated")
    profiles = document.get("profiles") or [{}]
    for each in profiles:
        _known(each, ("schedulerName",), "profiles[].")
    return SchedulerSettings(
        names=frozenset(each.get("schedulerName", "default-scheduler") for each in profiles),
        extender=_extender(extenders[0], "extenders[0].") if extenders else None,
    )


def _extender(entry: Json, at: str) -> ExtenderSettings:
    known = ("urlPrefix", "weight", "enableHTTPS", "tlsConfig", "httpTimeout", "nodeCacheCapable")
    _known(entry, (*known, *_VERBS, "managedResources", "ignorable"), at)
    _expect(entry.get("nodeCacheCapable") is True, f"{at}nodeCacheCapable: only true is simulated")
    _expect(not entry.get("ignorable"), f"{at}ignorable: only false is simulated")
    weight = entry.get("weight", 0)
    _expect(
        not entry.get("prioritizeVerb") or weight > 0,
        f"{at}weight: Invalid value: {weight}: must have a positive weight applied to it",
    )
    managed = entry.get("managedResources") or []
    for each in managed:
        _known(each, ("name",), f"{at}managedResources[].")
    tls = entry.get("tlsConfig") or {}
    _known(tls, ("serverName", "caFile"), f"{at}tlsConfig.")
    timeout = _SECONDS.fullmatch(entry.get("httpTimeout", "5s"))
    if timeout is None:
        raise ValueError(f"{at}httpTimeout: only whole seconds are simulated")
    return ExtenderSettings(
        url=entry["urlPrefix"].rstrip("/"),
        weight=weight,
        managed=frozenset(each["name"] for each in managed),
        ca_file=tls.get("caFile", ""),
        server_name=tls.get("serverName", ""),
        timeout_s=float(timeout[1]),
        filter_verb=entry.get("filterVerb", ""),
        prioritize_verb=entry.get("prioritizeVerb", ""),
        bind_verb=entry.get("bindVerb", ""),
    )


def _known(entry: Json, known: Collection[str], at: str) -> None:
    for key in entry:
        _expect(key in known, f'strict decoding error: unknown field "{at}{key}"')


def _expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 -- reads as "expect that"
    if not holds:
        raise ValueError(otherwise)
