"""The API server over real HTTP."""

import re
import ssl
from pathlib import Path

import pytest
import trustme
import urllib3

from simulator.api.faults import Fault, Outage
from simulator.api.server import ApiServer, Settings
from simulator.client import ApiClient, ApiError, ApiUnreachable
from tests.simulator.api_helpers import CORE, PODS, pod


def bind(client: ApiClient, name: str = "p", on: str = "n1") -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": on}
    client.create(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})


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


def test_a_budget_refuses_an_eviction_once_it_is_spent(client: ApiClient) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"selector": {"matchLabels": {"app": "x"}}}
    client.create(budgets, {"metadata": {"name": "x"}, "spec": spec})
    client.patch(f"{budgets}/x/status", {"status": {"disruptionsAllowed": 1}})
    for name in ("p", "q"):
        made = pod(name=name)
        made["metadata"]["labels"] = {"app": "x"}
        client.create(PODS, made)
        bind(client, name)
        client.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
    client.create(f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
    assert "deletionTimestamp" in client.get(f"{PODS}/p")["metadata"]
    with pytest.raises(ApiError) as raised:
        client.create(f"{PODS}/q/eviction", {"metadata": {"name": "q"}})
    assert (raised.value.status, raised.value.message) == (
        429,
        "Cannot evict pod as it would violate the pod's disruption budget.",
    )
    other = {"deleteOptions": {"preconditions": {"uid": "other"}}}
    with pytest.raises(ApiError, match="UID in precondition: other"):
        client.create(f"{PODS}/q/eviction", {"metadata": {"name": "q"}, **other})


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


def test_a_name_is_generated_for_an_object_that_has_only_a_prefix(client: ApiClient) -> None:
    obj = pod()
    obj["metadata"] = {"generateName": "train-"}
    names = {client.create(PODS, obj)["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2
    assert all(re.fullmatch("train-[b-z2-9]{5}", each) for each in names), names
    assert {each["metadata"]["name"] for each in client.list(PODS)["items"]} == names


def test_a_dry_run_returns_the_new_object_and_stores_nothing(client: ApiClient) -> None:
    obj = pod()
    obj["metadata"] = {"generateName": "train-"}
    made = client.create(PODS, obj, dry_run=True)["metadata"]
    assert made["name"].startswith("train-")
    assert made["uid"]
    assert client.list(PODS)["items"] == []
    client.create(PODS, pod())
    with pytest.raises(ApiError, match='pods "p" already exists'):
        client.create(PODS, pod(), dry_run=True)


def test_a_dry_run_of_another_verb_is_refused(server: ApiServer, client: ApiClient) -> None:
    client.create(PODS, pod())
    response = urllib3.request("DELETE", f"{server.url}{PODS}/p?dryRun=All")
    assert (response.status, response.json()["message"]) == (
        400,
        "dryRun: the simulated API server can only create in a dry run",
    )
    assert client.get(f"{PODS}/p")


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
        next(iter(watch))
    assert (raised.value.status, raised.value.reason) == (410, "Expired")


def test_watches_can_be_cut_off(server: ApiServer, client: ApiClient) -> None:
    watch = client.watch("/api/v1/pods", resource_version="1")
    server.drop_watches()
    with pytest.raises(ApiUnreachable, match="watch broke off"):
        list(watch)
    client.list(PODS)


def test_with_a_certificate_it_serves_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ApiServer(Settings(tls=context)) as server:
        assert server.url.startswith("https://")
        with ApiClient(server.url, ca_file=str(tmp_path / "ca.crt")) as client:
            client.create(PODS, pod())
            server.set_outage(Outage.REFUSED)
            server.set_outage(Outage.NONE)
            assert len(client.list(PODS)["items"]) == 1


def test_a_faulty_request_is_refused_until_it_is_corrected(
    server: ApiServer, client: ApiClient
) -> None:
    client.create(PODS, pod())
    server.fail(Fault(403, message="you cannot {asked}"), "list .*")
    with pytest.raises(ApiError, match=rf"^Forbidden: you cannot list {PODS}$"):
        client.list(PODS)
    client.get(f"{PODS}/p")
    server.restore()
    assert len(client.list(PODS)["items"]) == 1
    server.fail(Fault(200, b"{", cut=True))
    with pytest.raises(ApiUnreachable, match="broke off"):
        client.list(PODS)
