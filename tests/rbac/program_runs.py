"""Runs of each program with every situation in which it sends a request to the API server."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.dra.slices import SlicePublisher
from agent.kubernetes_api.client import CLAIMS, Api
from agent.kubernetes_api.pods import PodCache
from agent.kubernetes_api.watched_objects import WatchedObjects
from certs.__main__ import main as certs
from claims.cluster import TEMPLATES, ClaimsApi, follow
from claims.state import TemplateState
from common.apiserver import events
from common.apiserver.events import EventSubject, Notice
from common.serving.tls import Files
from gates.program import GatesProgram
from gates.settings import Settings as GatesSettings
from placement.cluster.workloads import API as KUEUE
from scheduler.extender import Extender
from scheduler.metrics import Metrics
from scheduler.settings import Settings
from simulator.api.faults import RequestRecord
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.api.server import Settings as ApiSettings
from simulator.client import ApiClient
from tests.agent.fakes import FakeClock, eventually
from tests.common.serving.through import client_of
from tests.deploy.manifests import base, environment
from tests.gates.kueue import CHECK, make_workload
from tests.placement.cluster.builders import NAMES, Json, hint, make_node, make_pod
from tests.rbac.grants import Request, command_line, read, started
from tests.rbac.recording import as_request, by_program
from tests.scheduler.leases import take_turn
from tests.view.kueue import LOCAL_QUEUE, NO_QUOTA, gated
from tests.view.kueue import workload as queued_workload
from tests.view.web.sample import held_pod
from view.cluster.agents import AGENT_NAMESPACE
from view.model.event_facts import CONTROLLERS
from view.web import server as view_server
from view.web.settings import Settings as ViewSettings

_TEAMS = ("team-a", "team-b")
Requests = dict[str, set[Request]]
"""Requests by the program that they name."""


@contextmanager
def _cluster(folder: Path, *namespaces: str) -> Iterator[tuple[ApiServer, ApiClient, Path]]:
    """Serve a cluster with these namespaces; also a client, and a kubeconfig for the program."""
    kubeconfig = folder / "kubeconfig"
    with ApiServer(ApiSettings(bookmark_s=0.1)) as server, ApiClient(server.url) as admin:
        kubeconfig.write_text(kubeconfig_for(server.url))
        for name in namespaces:
            server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield server, admin, kubeconfig


def agents(folder: Path) -> Requests:
    """Call every method of the agent's client, for two nodes with a namespace each."""
    with _cluster(folder, *_TEAMS) as (server, _, kubeconfig):
        for node, team in zip(("n1", "n2"), _TEAMS, strict=True):
            pods = [
                make_pod(each, (10, 1), node=node, namespace=team, uid="")
                for each in (f"a-{node}", "b")
            ]
            about = Notice(EventSubject("Pod", team, f"a-{node}", ""), "GPURefused", "no card")
            server.apply(make_node(node), pods[0])
            api = Api(kubeconfig)
            followed = PodCache(api=api, node=node, names=NAMES).collection
            version = followed.list()
            server.apply(pods[1])
            next(followed.watch(version))
            api.get_pod(team, f"a-{node}")
            api.patch_pod(team, f"a-{node}", {"metadata": {"labels": {"a": "b"}}})
            api.get_node(node)
            api.patch_node(node, {"metadata": {"labels": {"a": "b"}}})
            events.create(api, about, at=0.0)
            name = events.describe(about, count=1, at=0.0)["metadata"]["name"]
            api.patch_event(team, name, {"count": 2})
            _claims_of(api, server, node, team)
            api.close()
        return by_program(server.requests)


def _claims_of(api: Api, server: ApiServer, node: str, team: str) -> None:
    """Send the further requests of an agent with ``--mode dra``."""
    claim: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"c-{node}", "namespace": team},
    }
    claims = WatchedObjects(api, CLAIMS, "ResourceClaim").collection
    version = claims.list()
    server.apply(claim)
    next(claims.watch(version))
    api.get_claim(team, f"c-{node}")
    slices = SlicePublisher(api=api, node=node, driver="d", specs=dict).slices.collection
    version = slices.list()
    spec = {"nodeName": node, "driver": "d"}
    api.create_slice({"metadata": {"name": f"s-{node}"}, "spec": spec})
    next(slices.watch(version))
    api.patch_slice(f"s-{node}", {"spec": spec})
    api.delete_slice(f"s-{node}")
    api.patch_node_status(node, {"status": {"capacity": {"a.b/c": "1"}}})


# --- certs ------------------------------------------------------------------------------

# There are no replicas here that serve a certificate. One run is enough.
_LEFT_OUT = ("GPU_TURNSTILE_CERTS_REPLICAS", "GPU_TURNSTILE_CERTS_EVERY")


def rotations(folder: Path) -> Requests:
    """Run ``certs rotate`` as the Deployments of deploy/ do: on nothing, and on emptied Secrets."""
    with _cluster(folder, "gpu-turnstile", "gpu-turnstile-node") as (server, admin, kubeconfig):
        kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        server.apply(*(each for each in base() if each["kind"] in kinds))
        containers = [each for _, each in started(read(), "certs")]
        assert {tuple(_arguments(each))[:1] for each in containers} == {("rotate",)}
        for container in containers:
            _rotate(container, kubeconfig)
        _empty_the_secrets(admin, server)
        for container in containers:
            _rotate(container, kubeconfig)
        return by_program(server.requests)


def _arguments(container: dict[str, Any]) -> list[str]:
    arguments = command_line(container)
    return arguments[arguments.index("certs") + 1 :]


def _rotate(container: dict[str, Any], kubeconfig: Path) -> None:
    at_once = ["--kubeconfig", str(kubeconfig), "--settle", "0", "--grace", "0"]
    with pytest.MonkeyPatch.context() as patch:
        for each in container.get("env", ()):
            if each["name"] not in _LEFT_OUT:
                patch.setenv(each["name"], each.get("value", "gpu-turnstile"))
        assert certs([*_arguments(container), *at_once]) == 0


def _empty_the_secrets(admin: ApiClient, server: ApiServer) -> None:
    path = "/api/v1/namespaces/gpu-turnstile/secrets"
    for secret in admin.get(path)["items"]:
        metadata = {key: secret["metadata"][key] for key in ("name", "namespace")}
        admin.delete(f"{path}/{metadata['name']}")
        kind = {"apiVersion": "v1", "kind": "Secret", "type": secret["type"]}
        server.apply({**kind, "metadata": metadata, "data": {}})


# --- claims ------------------------------------------------------------------------------


def claims(folder: Path) -> Requests:
    """Call every method of the client of the claims program, for two namespaces."""
    with _cluster(folder, *_TEAMS) as (server, admin, kubeconfig):
        api = ClaimsApi(kubeconfig)
        followers = follow(TemplateState(NAMES), api)
        followers.start()
        for team in _TEAMS:
            server.apply(make_pod(f"a-{team}", (10, 1), namespace=team, uid=""))
            assert api.find_pod(team, f"a-{team}")
            metadata = {"name": f"t-{team}", "namespace": team}
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
            api.create_template(team, {**kind, "metadata": metadata, "spec": {}})
            (made,) = admin.list(TEMPLATES)["items"]
            api.delete_template(team, f"t-{team}", made["metadata"]["uid"])
            about = Notice(EventSubject("Pod", team, "a", ""), "GPUClaimWaits", "no template")
            events.create(api, about, at=0.0)
        watches = {"pods", "resourceclaimtemplates"}
        eventually(
            lambda: {each.resource for each in server.requests if _watches(each)} == watches,
            "both watches are open",
        )
        followers.stop()
        api.close()
        return by_program(server.requests)


# --- gates -------------------------------------------------------------------------------


def gates(folder: Path) -> Requests:
    """Let the controller take the Lease, activate its check and answer two workloads."""
    with _cluster(folder, "gpu-turnstile", *_TEAMS) as (server, admin, kubeconfig):
        kueue = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
        server.apply(make_node("n1", 2))
        for name in ("cards", "others"):
            check = {**CHECK, "metadata": {"name": name}}
            server.apply({**kueue, "kind": "AdmissionCheck", **check})
        for team in _TEAMS:
            workload = make_workload(f"train-{team}", (60, 4))
            del workload["metadata"]["uid"], workload["metadata"]["resourceVersion"]
            workload["metadata"]["namespace"] = team
            server.apply({**kueue, "kind": "Workload", **workload})
        program = GatesProgram(
            GatesSettings(kubeconfig=kubeconfig, http_host="127.0.0.1", http_port=0, names=NAMES)
        )
        program.start()
        workloads, checks = f"{KUEUE}/workloads", f"{KUEUE}/admissionchecks"
        eventually(
            lambda: (
                [
                    each["status"]["admissionChecks"][0]["state"]
                    for each in admin.list(workloads)["items"]
                ]
                == ["Ready", "Ready"]
            ),
            "both are answered",
        )
        eventually(
            lambda: all(each.get("status") for each in admin.list(checks)["items"]),
            "both are active",
        )
        assert (program.broken(), program.not_ready()) == ("", "")
        program.stop()
        return by_program(server.requests)


# --- scheduler ----------------------------------------------------------------------------


def extender(folder: Path) -> Requests:
    """Let a replica of the Deployment take the Lease, be found, bind pods, and end.

    Another one, with an address of the other family, takes it over.
    """
    variable = "GPU_TURNSTILE_SCHEDULER_ENDPOINT_SLICE"
    given = environment(_container(variable))
    with _cluster(folder, "gpu-turnstile", *_TEAMS) as (server, admin, kubeconfig):
        server.apply(*(each for each in read() if each["kind"] == "EndpointSlice"))
        server.apply(make_node("n1"), make_node("n2", 2))
        for address in ("10.0.0.1", "fd00::1"):
            settings = replace(
                _settings(kubeconfig),
                files=Files(Path("unused"), Path("unused")),
                endpoint_slice=given[variable],
                address=address,
                preempt=True,
                workloads=True,
            )
            replica = Extender(settings, Metrics(), clock=FakeClock())  # no lease expires
            asyncio.run(_run_replica(replica, admin, address))
        return by_program(server.requests)


def _settings(kubeconfig: Path) -> Settings:
    return Settings(
        host="127.0.0.1",
        port=8444,
        files=None,
        names=NAMES,
        kubeconfig=kubeconfig,
        namespace="gpu-turnstile",
    )


def _container(variable: str) -> Json:
    """Return the extender's container in the component that sets a variable."""
    (found,) = (each for _, each in started(read(), "scheduler") if variable in environment(each))
    return found


async def _run_replica(replica: Extender, admin: ApiClient, address: str) -> None:
    """Let a replica bind pods and be found; the first one evicts pods, too."""
    family = "ipv6" if ":" in address else "ipv4"
    replica.start()
    try:
        eventually(lambda: not replica.leadership.not_binding(), "it binds")
        await _bind(replica, admin, family)
        if family == "ipv4":
            _preempt(replica, admin)
        path = "/apis/discovery.k8s.io/v1/namespaces/gpu-turnstile/endpointslices"
        eventually(
            lambda: any(
                address in str(each.get("endpoints")) for each in admin.list(path)["items"]
            ),
            "it is found",
        )
    finally:
        replica.stop()


async def _bind(replica: Extender, admin: ApiClient, suffix: str) -> None:
    """Bind, in two namespaces, a pod that the replica follows and one that it does not."""
    for namespace in _TEAMS:
        for gpus in (True, False):
            body = _create_pod(admin, namespace, suffix, gpus)
            response = await replica.handler.bind(partial(bytes, body))
            assert json.loads(response.body) == {"Error": ""}


def sidecar(folder: Path) -> Requests:
    """Let a replica bind pods in the pod of the leading kube-scheduler, which renews its lease."""
    variable, clock = "GPU_TURNSTILE_SCHEDULER_KUBE_SCHEDULER_LEASE", FakeClock()
    lease = environment(_container(variable))[variable]
    path = "/apis/coordination.k8s.io/v1/namespaces/gpu-turnstile/leases"
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": lease}}
    with _cluster(folder, "gpu-turnstile", *_TEAMS) as (server, admin, kubeconfig):
        server.apply(make_node("n1"))
        admin.create(path, kind)
        settings = replace(_settings(kubeconfig), kube_scheduler_lease=lease, identity="pod-0")
        replica = Extender(settings, Metrics(), clock=clock)

        def binds() -> bool:
            clock.now += 1
            spec = {"holderIdentity": "pod-0_a", "renewTime": str(clock.now)}
            admin.patch(f"{path}/{lease}", {"spec": spec})
            take_turn(replica.leadership)
            return not replica.leadership.not_binding()

        eventually(binds, "it binds")
        asyncio.run(_bind(replica, admin, "beside"))
        replica.stop()
        return by_program(server.requests)


def _preempt(replica: Extender, admin: ApiClient) -> None:
    """Let pods of both namespaces be evicted from n2 for one in each, of a native gang."""
    for index, namespace in enumerate(_TEAMS):
        victim = make_pod(f"victim-{index}", (100, 0), uid="", namespace=namespace, node="n2")
        victim["metadata"]["annotations"] = hint(str(index))
        made = admin.create(f"/api/v1/namespaces/{namespace}/pods", victim)
        eventually(partial(replica.state.node_of, made["metadata"]["uid"]), "it is followed")
    for namespace in _TEAMS:
        prod = make_pod(f"prod-{namespace}", (100, 0), uid="", namespace=namespace)
        prod["spec"] |= {"priority": 1000, "schedulingGroup": {"podGroupName": f"gang-{namespace}"}}
        made = admin.create(f"/api/v1/namespaces/{namespace}/pods", prod)
        eventually(partial(replica.state.find, made["metadata"]["uid"]), "it is followed")
        args = {"Pod": made, "NodeNames": ["n2"]}
        replica.handler.decide("filter", partial(bytes, json.dumps(args).encode()))
    eventually(partial(_preempted, admin), "both are evicted")


def _preempted(admin: ApiClient) -> bool:
    events = admin.list("/api/v1/events")["items"]
    return [each["reason"] for each in events].count("Preempted") == len(_TEAMS)


def _create_pod(admin: ApiClient, namespace: str, suffix: str, gpus: bool) -> bytes:
    """Create a pod, and return kube-scheduler's request to bind it."""
    made = make_pod(f"{'share' if gpus else 'plain'}-{suffix}", (50, 8), uid="")
    made["metadata"]["namespace"] = namespace
    if not gpus:
        del made["spec"]["containers"][0]["resources"]
    metadata = admin.create(f"/api/v1/namespaces/{namespace}/pods", made)["metadata"]
    args = {"PodName": metadata["name"], "PodNamespace": namespace, "PodUID": metadata["uid"]}
    return json.dumps(args | {"Node": "n1"}).encode()


# --- view ---------------------------------------------------------------------------------


def page(folder: Path) -> Requests:
    """Serve the page, request all that it has, and wait until it follows the cluster."""
    with _cluster(folder, *_TEAMS, AGENT_NAMESPACE) as (server, admin, kubeconfig):
        server.apply(make_node("n1"), *(_waits_for_claim(team) for team in _TEAMS))
        for team in _TEAMS:
            pod = gated(make_pod(f"queued-{team}", (10, 1), namespace=team, uid=""))
            pod = admin.create(f"/api/v1/namespaces/{team}/pods", pod)
            found, queue = queued_workload(NO_QUOTA, owner=pod), deepcopy(LOCAL_QUEUE)
            found["metadata"]["namespace"] = queue["metadata"]["namespace"] = team
            found["spec"]["queueName"] = queue["metadata"]["name"] = f"queue-{team}"
            queue["spec"]["clusterQueue"] = f"gpus-{team}"
            server.apply(found, queue)
        agents = [(AGENT_NAMESPACE, f"agent-{number}") for number in (1, 2)]
        for namespace, name in (*((team, "p") for team in _TEAMS), *agents):
            pod = held_pod(namespace, name, ("n1", 0, 10, 1))
            pod["metadata"]["uid"] = ""
            if namespace == AGENT_NAMESPACE:
                pod["metadata"]["labels"] = {"app.kubernetes.io/name": "gpu-turnstile-agent"}
            admin.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        for namespace, name in agents:
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
            admin.patch(path, {"status": {"phase": "Running"}})
        page = view_server.PageServer(ViewSettings(names=NAMES, kubeconfig=kubeconfig))
        browser = client_of(page.load())
        eventually(lambda: browser.get("/readyz").status_code == 200, "it is ready")
        pods = [
            f"/pods/{team}/{pod}"
            for team in _TEAMS
            for pod in ("p", f"claim-{team}", f"queued-{team}")
        ]
        for path in ("/", "/rows?since=0", *pods, "/metrics"):
            assert browser.get(path).status_code == 200
        eventually(
            lambda: len({as_request(each) for each in server.requests if _watches(each)}) >= 3,
            "all watches are open",
        )
        eventually(
            lambda: (
                len({each.path for each in server.requests if "/proxy/metrics" in each.path}) == 2
            ),
            "metrics of both agents are read",
        )
        for name in _TEAMS:
            for kind in CONTROLLERS:
                server.apply(_denied(kind, name))
        eventually(
            lambda: (
                sum("/workload-" in each.path for each in server.requests) >= 2 * len(CONTROLLERS)
            ),
            "workloads whose pods are denied are read",
        )
        page.end()
        return by_program(server.requests)


def _waits_for_claim(namespace: str) -> Json:
    """Return a pod whose claim is not made, because its template is not there."""
    pod = make_pod(f"claim-{namespace}", (10, 1), namespace=namespace, uid="")
    template = f"gpu-turnstile-{namespace.encode().hex():0>16}"
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
    return pod


def _denied(kind: str, namespace: str) -> Json:
    about = {
        "kind": kind,
        "namespace": namespace,
        "name": f"workload-{kind}-{namespace}",
        "uid": kind,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"denied-{kind.lower()}", "namespace": namespace},
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": "denied by gpu-turnstile",
        "lastTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _watches(record: RequestRecord) -> bool:
    return record.verb == "watch"
