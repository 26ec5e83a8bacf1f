"""The kinds of failing requests in the agent's gauge, and the node object as the agent reads it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from agent.errors import Unavailable
from agent.kubernetes_api.access import KINDS, FailureReason
from agent.kubernetes_api.client import Api, Json, Rejected
from agent.kubernetes_api.node import NodeReader
from common.apiserver.events import EventSubject, Notice, create
from simulator.api.faults import Fault, Outage
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from tests.agent.fakes import NAMES, FakeClock, make_manifest

NOTICE = Notice(EventSubject("Pod", "default", "a", "uid-a"), "GPURefused", "no card fits")
PODS = "/api/v1/pods"
RBAC = Path(__file__).parents[3] / "deploy/base/agent/rbac.yaml"
OBJECTS = (PODS, "/api/v1/nodes", "/api/v1/events")
PATCH: Json = {"metadata": {"annotations": {"a": "b"}}}
FORBIDDEN = (
    'pods is forbidden: User "system:serviceaccount:gpu-turnstile-node:gpu-turnstile-agent" '
    'cannot list resource "pods" in API group "" at the cluster scope'
)
POLICY = (
    "nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'gpu-turnstile-agent-node' with binding "
    "'gpu-turnstile-agent-node' denied request: the agent may change only its own node"
)
TERMINATING = (
    'events "a.1" is forbidden: unable to create new content in namespace x because it is '
    "being terminated"
)

CALLS: dict[tuple[str, str], Callable[[Api], object]] = {
    ("list", "pods"): lambda api: api.list(PODS, {}),
    ("watch", "pods"): lambda api: next(api.watch(PODS, {"resourceVersion": "0"})),
    ("get", "pods"): lambda api: api.get_pod("default", "a"),
    ("patch", "pods"): lambda api: api.patch_pod("default", "a", PATCH),
    ("get", "nodes"): lambda api: api.get_node("n1"),
    ("patch", "nodes"): lambda api: api.patch_node("n1", PATCH),
    ("list", "resourceslices"): lambda api: api.list_slices("n1", "gpu.nvidia.com"),
    ("create", "events"): lambda api: create(api, NOTICE, at=0.0),
    ("patch", "events"): lambda api: api.patch_event("default", "a.1", {}),
}


def test_every_permission_of_the_agent_is_watched() -> None:
    (role,) = [
        each
        for each in yaml.safe_load_all(RBAC.read_text(encoding="utf-8"))
        if each["kind"] == "ClusterRole"
    ]
    granted = {
        (verb, resource)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {*KINDS} == {*CALLS}


@pytest.mark.parametrize("kind", CALLS)
def test_a_missing_permission_is_shown_until_a_request_succeeds(
    api: Api, server: ApiServer, kind: tuple[str, str]
) -> None:
    server.apply(
        make_manifest("a"), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    )
    server.fail(Fault(403, message=FORBIDDEN))
    with pytest.raises((Rejected, Unavailable)):
        CALLS[kind](api)
    assert api.failures.current() == {kind: FailureReason.FORBIDDEN}
    assert api.failures.samples()[*kind, "forbidden"] == 1
    server.restore()
    with suppress(Rejected):  # 404: that is no missing permission
        CALLS[kind](api)
    assert api.failures.current() == {}
    assert set(api.failures.samples().values()) == {0}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(403, message=FORBIDDEN), "forbidden"),
        (Fault(403, message=POLICY), "denied"),
        (Fault(422, message=POLICY), "denied"),
        (Fault(401, message="Unauthorized"), "unauthorized"),
        (Fault(503, message="overloaded"), "unreachable"),
        (Fault(500, message='failed calling webhook "x"'), "unreachable"),
        (Fault(403, message=TERMINATING), None),
        (Fault(404, message='nodes "n1" not found'), None),
        (Fault(409, message="the object has been modified"), None),
        (Fault(410, message="too old"), None),
    ],
)
def test_why_requests_fail(api: Api, server: ApiServer, fault: Fault, reason: str | None) -> None:
    server.fail(fault)
    with suppress(Exception):
        api.patch_node("n1", {})
    assert [each.value for each in api.failures.current().values()] == [reason] * (
        reason is not None
    )


def test_an_api_server_that_responds_is_reachable_for_all_requests(
    api: Api, server: ApiServer
) -> None:
    server.set_outage(Outage.REFUSED)
    for call in CALLS.values():
        with suppress(Unavailable):
            call(api)
    assert set(api.failures.current()) == {*KINDS}
    server.set_outage(Outage.NONE)
    api.list(PODS, {})
    assert api.failures.current() == {}


@pytest.mark.parametrize("kind", [each for each in CALLS if each[0] != "watch"])
def test_a_refused_request_is_made_again_until_it_is_accepted_and_changes_nothing(
    api: Api, server: ApiServer, admin: ApiClient, kind: tuple[str, str]
) -> None:
    """A pod is got and an Event created only now and then: the permission may be back since."""
    server.apply(
        make_manifest("a"), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    )
    server.fail(Fault(403, message=FORBIDDEN))
    with suppress(Rejected, Unavailable):
        CALLS[kind](api)
    for fault, reason in (
        (Fault(403, message=FORBIDDEN), FailureReason.FORBIDDEN),
        (Fault(503, message="overloaded"), FailureReason.FORBIDDEN),  # nothing new is known
        (Fault(403, message=POLICY), FailureReason.DENIED),
        (Fault(401, message="Unauthorized"), FailureReason.UNAUTHORIZED),
    ):
        server.fail(fault)
        api.failures.retry()
        assert api.failures.current() == {kind: reason}
    server.restore()
    before = [admin.get(each) for each in OBJECTS]
    since = len(server.requests)
    api.failures.retry()
    (request,) = server.requests[since:]
    assert (request.verb, request.resource) == kind
    assert ("dryRun=All" in request.query) == (kind[0] in {"create", "patch"})
    assert api.failures.current() == {}
    api.failures.retry()
    assert len(server.requests) == since + 1
    assert [admin.get(each) for each in OBJECTS] == before


def test_a_missing_permission_outlasts_an_outage(api: Api, server: ApiServer) -> None:
    server.fail(Fault(403, message=FORBIDDEN))
    with suppress(Unavailable):
        api.get_pod("default", "a")
    server.set_outage(Outage.REFUSED)
    with suppress(Unavailable):
        api.get_pod("default", "a")
    assert api.failures.current() == {("get", "pods"): FailureReason.UNREACHABLE}
    server.set_outage(Outage.NONE)
    server.restore()
    api.list(PODS, {})
    assert api.failures.current() == {("get", "pods"): FailureReason.FORBIDDEN}


class FakeNodeApi(Api):
    def __init__(self) -> None:
        self.found: Json | Exception = {"metadata": {}}
        self.slices: list[Json] | Exception = []
        self.lists = 0

    def get_node(self, name: str) -> Json:
        assert name == "n1"
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def list_slices(self, node: str, driver: str) -> Sequence[Json]:
        assert (node, driver) == ("n1", "gpu.nvidia.com")
        self.lists += 1
        if isinstance(self.slices, Exception):
            raise self.slices
        return self.slices

    def set_annotation(self, text: str | None) -> None:
        self.found = {"metadata": {"annotations": {NAMES.gpu_cordoned: text} if text else {}}}


def unexpected(found: object) -> None:
    pytest.fail(f"reported {found}")


def test_changes_are_reported_and_the_last_state_holds_during_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agent.kubernetes_api.node")
    api, reported = FakeNodeApi(), list[Sequence[str]]()
    reader = NodeReader(
        api=api, node="n1", names=NAMES, on_cordon=reported.append, on_others=unexpected
    )
    reader.read()
    assert reported == []
    api.set_annotation(" GPU-1,GPU-0, ")
    reader.read()
    reader.read()
    assert reported == [("GPU-1", "GPU-0")]
    for error in (Unavailable("timeout"), Rejected(403, "forbidden"), Rejected(404, "no node")):
        api.found = error
        reader.read()
    assert reported == [("GPU-1", "GPU-0")]
    api.set_annotation(None)
    reader.read()
    assert reported == [("GPU-1", "GPU-0"), ()]
    assert [each.getMessage() for each in caplog.records] == ["cordoned cards cannot be read"]


@pytest.mark.parametrize(
    ("allocatable", "mig", "others"),
    [
        ({}, False, {}),
        ({"cpu": "8", "nvidia.com/gpu": "0", NAMES.core: "800"}, False, {}),  # it is off again
        ({"nvidia.com/mig-1g.10gb": "7"}, False, {}),  # cards in MIG mode are not ours
        ({"nvidia.com/mig-1g.10gb": "7"}, True, {"nvidia.com/mig-1g.10gb": 7}),
        ({"nvidia.com/mig-1g.10gb": "0"}, True, {}),
        ({"nvidia.com/gpu": "8"}, False, {"nvidia.com/gpu": 8}),
        ({"nvidia.com/gpu": "many"}, False, {}),
    ],
)
def test_another_device_plugin_shows_in_the_nodes_allocatable_resources(
    *, allocatable: dict[str, str] | None, mig: bool, others: dict[str, int]
) -> None:
    api, reported = FakeNodeApi(), list[Mapping[str, int]]()
    reader = NodeReader(
        api=api, node="n1", names=NAMES, on_cordon=unexpected, on_others=reported.append, mig=mig
    )
    api.found = {"metadata": {}, "status": {"allocatable": allocatable}}
    reader.read()
    reader.read()
    assert reported == ([others] if others else [])
    api.found = {"metadata": {}}
    reader.read()
    assert reported == ([others, {}] if others else [])


def test_nvidias_dra_driver_shows_in_slices_which_are_listed_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, reported, clock = FakeNodeApi(), list[Mapping[str, int]](), FakeClock()
    reader = NodeReader(
        api=api,
        node="n1",
        names=NAMES,
        on_cordon=unexpected,
        on_others=reported.append,
        clock=clock,
    )

    def read(slices: list[Json] | Exception, after: float = 60) -> None:
        clock.now += after
        api.slices = slices
        reader.read()

    driver = {"driver": "gpu.nvidia.com", "nodeName": "n1", "devices": [{"name": "gpu-0"}] * 4}
    read([{"spec": driver}])
    api.found = {"metadata": {}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    read([], after=59)
    both = {"nvidia.com/gpu": 4, "gpu.nvidia.com": 4}
    assert reported == [{"gpu.nvidia.com": 4}, both]
    for error in (Unavailable("timeout"), Rejected(403, "forbidden")):
        read(error)
    assert reported == [{"gpu.nvidia.com": 4}, both]  # nothing is known to have changed
    read([])
    assert reported[2:] == [{"nvidia.com/gpu": 4}]
    assert api.lists == 4
    messages = [each.getMessage() for each in caplog.records]
    assert messages == ["slices of another driver cannot be read"]
