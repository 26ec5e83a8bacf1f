"""The API server over real HTTP."""

import pytest

from simulator.client import ApiClient, ApiError
from tests.simulator.api_helpers import CORE, PODS, pod


def bind(client: ApiClient, on: str = "n1") -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": on}
    client.create(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": target})


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


def test_a_pod_is_bound_once(client: ApiClient) -> None:
    client.create(PODS, pod())
    bind(client)
    with pytest.raises(ApiError) as raised:
        bind(client, on="n2")
    assert (raised.value.status, raised.value.message) == (
        409,
        'Operation cannot be fulfilled on pods "p": pod p is already assigned to node "n1"',
    )
    assert client.get(f"{PODS}/p")["spec"]["nodeName"] == "n1"
