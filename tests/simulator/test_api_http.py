"""The API server over real HTTP, as seen by our client and by the official one."""

from collections.abc import Iterator

import kubernetes
import pytest

from simulator.api.resources import PODS as POD_RESOURCE
from simulator.api.server import ApiServer
from simulator.client import ApiClient, ApiError, Json
from tests.simulator.api_helpers import CORE, PODS, pod


@pytest.fixture
def official(server: ApiServer) -> Iterator[kubernetes.client.CoreV1Api]:
    configuration = kubernetes.client.Configuration()
    configuration.host = server.url
    with kubernetes.client.ApiClient(configuration) as api:
        yield kubernetes.client.CoreV1Api(api)


def binding(name: str = "p", on: str = "n1", **metadata: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": {"kind": "Node", "name": on},
    }


def bind(client: ApiClient, name: str = "p", on: str = "n1") -> None:
    client.create(f"{PODS}/{name}/binding", binding(name, on))


def refused(error: pytest.ExceptionInfo[ApiError]) -> tuple[int, str, str]:
    return error.value.status, error.value.reason, error.value.message


def test_a_pod_is_stored_as_the_real_server_would_write_it_back(client: ApiClient) -> None:
    client.create(PODS, pod(limits={CORE: 1000, "cpu": "0.5"}))
    stored = client.get(f"{PODS}/p")
    resources = stored["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {CORE: "1k", "cpu": "500m"}
    assert stored["status"]["phase"] == "Pending"
    assert (stored["kind"], stored["metadata"]["namespace"]) == ("Pod", "default")


def test_a_patch_of_another_object_of_that_name_conflicts(client: ApiClient) -> None:
    client.create(PODS, pod())
    with pytest.raises(ApiError) as raised:
        client.patch(f"{PODS}/p", {"metadata": {"uid": "other", "labels": {"a": "b"}}})
    assert raised.value.status == 409
    assert "UID in precondition: other" in raised.value.message


def test_status_and_the_rest_are_written_apart(client: ApiClient) -> None:
    client.create(PODS, pod())
    client.patch(f"{PODS}/p", {"status": {"phase": "Running"}})
    assert client.get(f"{PODS}/p")["status"]["phase"] == "Pending"
    client.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}, "spec": {"x": 1}})
    changed = client.get(f"{PODS}/p")
    assert (changed["status"]["phase"], "x" in changed["spec"]) == ("Running", False)


def test_a_binding_gives_node_and_annotations(client: ApiClient) -> None:
    client.create(PODS, pod() | {"metadata": {"name": "p", "annotations": {"a": "1"}}})
    client.create(f"{PODS}/p/binding", binding(annotations={"b": "2"}))
    bound = client.get(f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"a": "1", "b": "2"}
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    with pytest.raises(ApiError) as raised:
        bind(client, on="n2")
    assert refused(raised) == (
        409,
        "Conflict",
        'Operation cannot be fulfilled on pods "p": pod p is already assigned to node "n1"',
    )


def test_a_bound_pod_waits_for_its_kubelet(client: ApiClient) -> None:
    client.create(PODS, pod())
    bind(client)
    going = client.delete(f"{PODS}/p")["metadata"]
    assert going["deletionGracePeriodSeconds"] == 30
    again = client.delete(f"{PODS}/p", grace_period_seconds=60)["metadata"]
    assert again == going, "a later end is no end"
    sooner = client.delete(f"{PODS}/p", grace_period_seconds=5)["metadata"]
    assert sooner["deletionGracePeriodSeconds"] == 5
    with pytest.raises(ApiError) as raised:
        client.delete(f"{PODS}/p", grace_period_seconds=0, uid="other")
    assert raised.value.status == 409
    client.delete(f"{PODS}/p", grace_period_seconds=0, uid=going["uid"])
    assert client.list(PODS)["items"] == []


def test_a_list_selects_and_ignores_limit_and_version(client: ApiClient) -> None:
    for name in ("a", "b", "c"):
        client.create(PODS, pod(name))
    bind(client, "b")
    listed = client.list(
        "/api/v1/pods", fieldSelector="spec.nodeName=n1", resourceVersion="0", limit="1"
    )
    assert [each["metadata"]["name"] for each in listed["items"]] == ["b"]
    assert listed["kind"] == "PodList"
    assert len(client.list(PODS, limit="1")["items"]) == 3


def test_a_watch_of_a_node_sees_a_pod_when_it_is_bound(client: ApiClient) -> None:
    start = client.list("/api/v1/pods")["metadata"]["resourceVersion"]
    with client.watch(
        "/api/v1/pods", resource_version=start, field_selector="spec.nodeName=n1"
    ) as watch:
        client.create(PODS, pod())
        bind(client)
        client.patch(f"{PODS}/p", {"metadata": {"annotations": {"a": "1"}}})
        client.delete(f"{PODS}/p", grace_period_seconds=0)
        events = (event for event in watch if event.type != "BOOKMARK")
        assert [next(events).type for _ in range(3)] == ["ADDED", "MODIFIED", "DELETED"]


def test_the_official_client_lists_watches_patches_and_records(
    official: kubernetes.client.CoreV1Api, client: ApiClient
) -> None:
    client.create(PODS, pod())
    bind(client)
    listed = official.list_pod_for_all_namespaces(
        field_selector="spec.nodeName=n1", resource_version="0"
    ).to_dict()
    assert [each["metadata"]["name"] for each in listed["items"]] == ["p"]
    patch = {"metadata": {"annotations": {"a.example/b": "c"}}}
    patched = official.patch_namespaced_pod("p", "default", patch).to_dict()
    assert patched["metadata"]["annotations"] == {"a.example/b": "c"}
    seen = kubernetes.watch.Watch().stream(
        official.list_pod_for_all_namespaces,
        resource_version=listed["metadata"]["resource_version"],
        allow_watch_bookmarks=True,
        timeout_seconds=1,
    )
    kinds = [event["type"] for event in seen]
    assert kinds[0] == "MODIFIED"
    assert set(kinds[1:]) == {"BOOKMARK"}
    event = kubernetes.client.CoreV1Event(
        metadata=kubernetes.client.V1ObjectMeta(name="p.1"),
        involved_object=kubernetes.client.V1ObjectReference(kind="Pod", name="p"),
        reason="Refused",
        message="no room",
    )
    official.create_namespaced_event("default", event)
    assert official.list_event_for_all_namespaces().items[0].message == "no room"
    going = official.delete_namespaced_pod("p", "default").to_dict()
    assert going["metadata"]["deletion_grace_period_seconds"] == 30
    with pytest.raises(kubernetes.client.ApiException) as raised:
        official.read_namespaced_pod("nope", "default")
    assert raised.value.status == 404
    assert 'pods \\"nope\\" not found' in str(raised.value.body)


def test_requests_are_recorded_in_the_terms_of_rbac(server: ApiServer, client: ApiClient) -> None:
    client.create(PODS, pod())
    bind(client)
    client.get(f"{PODS}/p")
    client.list("/api/v1/pods")
    client.watch("/api/v1/pods", resource_version="1").__exit__(None, None, None)
    client.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}})
    client.delete(f"{PODS}/p")
    assert [(each.verb, each.resource, each.name) for each in server.requests] == [
        ("create", "pods", ""),
        ("create", "pods/binding", "p"),
        ("get", "pods", "p"),
        ("list", "pods", ""),
        ("watch", "pods", ""),
        ("patch", "pods/status", "p"),
        ("delete", "pods", "p"),
    ]
    assert server.requests[0].user_agent == "gpu-turnstile-simulator"
    assert server.requests[0].namespace == "default"


def test_a_watch_from_an_expired_version_is_an_error_410(
    server: ApiServer, client: ApiClient
) -> None:
    client.create(PODS, pod())
    server.expire_history()
    with (
        client.watch("/api/v1/pods", resource_version="1") as watch,
        pytest.raises(ApiError) as raised,
    ):
        next(watch)
    assert (raised.value.status, raised.value.reason) == (410, "Expired")


def test_the_cache_of_one_resource_can_lag(server: ApiServer, client: ApiClient) -> None:
    start = client.list("/api/v1/pods")["metadata"]["resourceVersion"]
    server.delay_watches(POD_RESOURCE, 3600)
    client.create(PODS, pod())
    cached = client.list("/api/v1/pods", resourceVersion="0")
    assert (cached["items"], cached["metadata"]["resourceVersion"]) == ([], start)
    assert len(client.list("/api/v1/pods")["items"]) == 1
    with client.watch("/api/v1/pods", resource_version=start) as watch:
        server.delay_watches(POD_RESOURCE, 0)
        assert next(event for event in watch if event.type != "BOOKMARK").type == "ADDED"
