"""The parts of a KubeSchedulerConfiguration that this scheduler knows. Pure.

Decoded strictly, as kube-scheduler does it, so that a fragment which it would refuse is
refused here too. ``pkg/scheduler/apis/config/validation`` has the rules and their words.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.manifests import Json

API_VERSION = "kubescheduler.config.k8s.io/v1"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<unit>ns|us|µs|ms|s|m|h)")
_DEFAULT_TIMEOUT_S = 5.0
_IGNORED = frozenset(
    {"apiVersion", "kind", "metadata", "leaderElection", "clientConnection", "parallelism"}
    | {"enableProfiling", "enableContentionProfiling", "delayCacheUntilActive"}
)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """``tlsConfig`` of an extender; data takes precedence over files."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: bytes = b""
    key_data: bytes = b""
    ca_data: bytes = b""

    @property
    def has_ca(self) -> bool:
        """Whether an authority is named."""
        return bool(self.ca_file or self.ca_data)


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """One entry of ``extenders``.

    Attributes:
        url_prefix: what verbs are appended to.
        filter_verb: empty where the extender does not filter.
        prioritize_verb: empty where it gives no scores.
        bind_verb: empty where it does not bind.
        weight: what its scores are multiplied by.
        enable_https: without an authority in *tls* then nothing is verified.
        tls: how to reach it; ``None`` for Go's defaults.
        timeout_s: seconds for a whole call.
        node_cache_capable: it gets and gives names instead of whole nodes.
        managed: resources that make a pod its business; none means all pods.
        ignored: those of *managed* that the scheduler itself must not check.
        ignorable: a failure of it does not stop a pod.
    """

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = 0
    enable_https: bool = False
    tls: TlsSettings | None = None
    timeout_s: float = _DEFAULT_TIMEOUT_S
    node_cache_capable: bool = False
    managed: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    ignorable: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a scheduler is told.

    Attributes:
        extenders: in the order of the file.
        names: pods with one of these in ``spec.schedulerName`` are its own.
        percentage: ``percentageOfNodesToScore``; 0 lets the cluster's size decide.
        initial_backoff_s: seconds after the first failed attempt.
        max_backoff_s: seconds, the longest wait.
        scored: resources that NodeResourcesFit scores by, and their weights.
        most_allocated: prefer full nodes to empty ones.
    """

    extenders: Sequence[ExtenderSettings] = ()
    names: frozenset[str] = frozenset({"default-scheduler"})
    percentage: int = 0
    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    scored: Sequence[tuple[str, int]] = (("cpu", 1), ("memory", 1))
    most_allocated: bool = False

    @property
    def ignored(self) -> frozenset[str]:
        """Resources that the scheduler itself does not check."""
        return frozenset().union(*(each.ignored for each in self.extenders))


def parse_configuration(document: Json) -> SchedulerSettings:
    """Read a decoded KubeSchedulerConfiguration.

    Raises:
        ValueError: kube-scheduler would refuse it, or it asks for what is not simulated.
    """
    _expect(document.get("kind") == "KubeSchedulerConfiguration", "kind: not a configuration")
    _expect(document.get("apiVersion") == API_VERSION, f"apiVersion: must be {API_VERSION}")
    known = {"extenders", "profiles", "percentageOfNodesToScore"}
    known |= {"podInitialBackoffSeconds", "podMaxBackoffSeconds"}
    _known(document, known | _IGNORED, "")
    extenders = [
        _extender(each, f"extenders[{index}]")
        for index, each in enumerate(document.get("extenders") or ())
    ]
    _check_together(extenders)
    profiles = document.get("profiles") or [{}]
    scored, most = _scoring(profiles)
    defaults = SchedulerSettings()
    return SchedulerSettings(
        extenders=tuple(extenders),
        names=frozenset(each.get("schedulerName", "default-scheduler") for each in profiles),
        percentage=document.get("percentageOfNodesToScore") or 0,
        initial_backoff_s=document.get("podInitialBackoffSeconds", defaults.initial_backoff_s),
        max_backoff_s=document.get("podMaxBackoffSeconds", defaults.max_backoff_s),
        scored=scored or defaults.scored,
        most_allocated=most,
    )


def parse_duration(text: str) -> float:
    """Read a duration as Go writes it, such as ``1m30s``, in seconds.

    Raises:
        ValueError: it is none.
    """
    parts = list(_DURATION.finditer(text))
    if text == "0":
        return 0.0
    _expect(bool(parts) and "".join(map(str, (p.group() for p in parts))) == text, _no(text))
    return sum(float(part["number"]) * _UNITS[part["unit"]] for part in parts)


def _no(text: object) -> str:
    return f"time: invalid duration {text!r}"


def _extender(entry: Json, at: str) -> ExtenderSettings:
    known = {"urlPrefix", "filterVerb", "prioritizeVerb", "bindVerb", "weight", "enableHTTPS"}
    known |= {"tlsConfig", "httpTimeout", "nodeCacheCapable", "managedResources", "ignorable"}
    _expect("preemptVerb" not in entry, f"{at}.preemptVerb: preemption is not simulated")
    _known(entry, known, f"{at}.")
    managed = entry.get("managedResources") or []
    for index, each in enumerate(managed):
        _known(each, {"name", "ignoredByScheduler"}, f"{at}.managedResources[{index}].")
    weight = entry.get("weight", 0)
    _expect(
        not entry.get("prioritizeVerb") or weight > 0,
        f"{at}.weight: Invalid value: {weight}: must have a positive weight applied to it",
    )
    tls = entry.get("tlsConfig")
    return ExtenderSettings(
        url_prefix=entry.get("urlPrefix", ""),
        filter_verb=entry.get("filterVerb", ""),
        prioritize_verb=entry.get("prioritizeVerb", ""),
        bind_verb=entry.get("bindVerb", ""),
        weight=weight,
        enable_https=entry.get("enableHTTPS", False),
        tls=None if tls is None else _tls(tls, f"{at}.tlsConfig."),
        timeout_s=parse_duration(entry.get("httpTimeout", "0")) or _DEFAULT_TIMEOUT_S,
        node_cache_capable=entry.get("nodeCacheCapable", False),
        managed=frozenset(each["name"] for each in managed),
        ignored=frozenset(each["name"] for each in managed if each.get("ignoredByScheduler")),
        ignorable=entry.get("ignorable", False),
    )


def _tls(entry: Json, at: str) -> TlsSettings:
    files = {"certFile": "cert_file", "keyFile": "key_file", "caFile": "ca_file"}
    data = {"certData": "cert_data", "keyData": "key_data", "caData": "ca_data"}
    _known(entry, {*files, *data, "insecure", "serverName"}, at)
    fields: dict[str, Any] = {name: entry.get(key, "") for key, name in files.items()}
    for key, name in data.items():
        try:
            fields[name] = base64.b64decode(entry.get(key, ""), validate=True)
        except binascii.Error as error:
            raise ValueError(f"{at}{key}: illegal base64 data: {error}") from error
    return TlsSettings(
        insecure=entry.get("insecure", False), server_name=entry.get("serverName", ""), **fields
    )


def _check_together(extenders: Sequence[ExtenderSettings]) -> None:
    binders = sum(bool(each.bind_verb) for each in extenders)
    _expect(
        binders <= 1,
        f"extenders: Invalid value: found {binders} extenders implementing bind: "
        "only one extender can implement bind",
    )
    seen: set[str] = set()
    for index, each in enumerate(extenders):
        for name in sorted(each.managed):
            _expect(
                name not in seen,
                f"extenders[{index}].managedResources: Invalid value: {name}: "
                "duplicate extender managed resource name",
            )
        seen |= each.managed


def _scoring(profiles: Sequence[Json]) -> tuple[Sequence[tuple[str, int]], bool]:
    """Return the resources and weights of NodeResourcesFit, and whether it prefers full nodes."""
    for profile in profiles:
        for plugin in profile.get("pluginConfig") or ():
            if plugin.get("name") != "NodeResourcesFit":
                continue
            strategy = (plugin.get("args") or {}).get("scoringStrategy") or {}
            resources = [
                (each["name"], each.get("weight", 1)) for each in strategy.get("resources") or ()
            ]
            return tuple(resources), strategy.get("type") == "MostAllocated"
    return (), False


def _known(entry: Mapping[str, object], known: frozenset[str] | set[str], at: str) -> None:
    for key in entry:
        _expect(key in known, f'strict decoding error: unknown field "{at}{key}"')


def _expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 -- reads as "expect that"
    if not holds:
        raise ValueError(otherwise)
