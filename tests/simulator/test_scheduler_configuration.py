"""A KubeSchedulerConfiguration is read as kube-scheduler reads it, and refused as it refuses it."""

import re

import pytest

from simulator.client import Json
from simulator.scheduler.configuration import ExtenderSettings, TlsSettings, parse_configuration
from simulator.scheduler.scoring import score
from tests.simulator.api_helpers import CORE, node, pod
from tests.simulator.extender_helpers import configuration

URL = "https://127.0.0.1:1"
MEMORY = "tencent.com/vcuda-memory"
ENTRY: Json = {
    "urlPrefix": "https://gpu-turnstile-scheduler.gpu-turnstile.svc",
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "bindVerb": "bind",
    "weight": 5,
    "enableHTTPS": True,
    "tlsConfig": {"caData": "Q0E=", "serverName": "scheduler", "certFile": "c", "keyFile": "k"},
    "httpTimeout": "2s",
    "nodeCacheCapable": True,
    "managedResources": [{"name": CORE, "ignoredByScheduler": True}, {"name": MEMORY}],
    "ignorable": True,
}


def test_every_field_of_an_extender_is_read() -> None:
    settings = parse_configuration(configuration(ENTRY))
    assert settings.extenders == (
        ExtenderSettings(
            url_prefix="https://gpu-turnstile-scheduler.gpu-turnstile.svc",
            filter_verb="filter",
            prioritize_verb="prioritize",
            bind_verb="bind",
            weight=5,
            enable_https=True,
            tls=TlsSettings(server_name="scheduler", cert_file="c", key_file="k", ca_data=b"CA"),
            timeout_s=2.0,
            node_cache_capable=True,
            managed=frozenset({CORE, MEMORY}),
            ignored=frozenset({CORE}),
            ignorable=True,
        ),
    )
    assert settings.ignored == {CORE}


def test_profiles_name_the_scheduler_and_what_nodes_are_scored_by() -> None:
    args = {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": CORE}]}}
    profile = {
        "schedulerName": "gpu-turnstile",
        "pluginConfig": [{"name": "Other"}, {"name": "NodeResourcesFit", "args": args}],
    }
    settings = parse_configuration(
        configuration(
            profiles=[profile],
            leaderElection={"leaderElect": True},
            podInitialBackoffSeconds=2,
            podMaxBackoffSeconds=4,
        )
    )
    assert settings.names == {"gpu-turnstile"}
    assert (settings.scored, settings.most_allocated) == (((CORE, 1),), True)
    assert (settings.initial_backoff_s, settings.max_backoff_s) == (2, 4)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([{"urlPrefix": URL, "urlprefix": ""}], 'unknown field "extenders[0].urlprefix"'),
        ([{"tlsConfig": {"ca": ""}}], 'unknown field "extenders[0].tlsConfig.ca"'),
        (
            [{"managedResources": [{"resource": CORE}]}],
            'unknown field "extenders[0].managedResources[0].resource"',
        ),
        (
            [{"prioritizeVerb": "prioritize"}],
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
        ),
        ([{"bindVerb": "b"}, {"bindVerb": "b"}], "found 2 extenders implementing bind"),
        (
            [{"managedResources": [{"name": CORE}]}, {"managedResources": [{"name": CORE}]}],
            f"extenders[1].managedResources: Invalid value: {CORE}: duplicate extender",
        ),
        ([{"httpTimeout": "5"}], "time: invalid duration '5'"),
        ([{"tlsConfig": {"caData": "-"}}], "extenders[0].tlsConfig.caData: illegal base64 data"),
        ([{"preemptVerb": "preempt"}], "extenders[0].preemptVerb: preemption is not simulated"),
    ],
)
def test_what_kube_scheduler_would_not_start_with_is_refused(
    entries: list[Json], error: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        parse_configuration(configuration(*entries))


@pytest.mark.parametrize(
    ("taken", "resources", "most", "points"),
    [
        (0, [("cpu", 1), ("memory", 1)], False, 97),  # 100m of 4, 200 MiB of 8 GiB, assumed
        (10, [("cpu", 1)], False, 72),
        (10, [("cpu", 1)], True, 27),
        (1, [(CORE, 1), ("cpu", 3)], False, (40 + 95 * 3) // 4),
        (0, [("example.com/none", 1)], False, 0),
        (99, [("cpu", 1)], False, 0),
    ],
)
def test_nodes_are_scored_by_what_is_free_or_taken(
    taken: int, resources: list[tuple[str, int]], most: bool, points: int
) -> None:
    machine = node(core="100", cpu="4", memory="8Gi")
    asking = pod(limits={CORE: "30"})
    others = [pod(limits={CORE: "30"})] * taken
    assert score(asking, machine, others, resources, most_allocated=most) == points
