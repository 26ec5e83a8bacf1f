"""``kubectl gpu`` prints what is unknown, failed or deleted as such.

On a simulated API server with missing permissions and responses.
"""

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from simulator.api.faults import SILENCE, Fault
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import NAMES, Json
from tests.view import scenes
from tests.view.conftest import populate, requests_since
from tests.view.terminal import schema
from tests.view.terminal.conftest import Gpu

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kubeconfig")]

NODES, PODS = "list /api/v1/nodes", "list /api/v1/(namespaces/[^/]+/)?pods"
GRANT = (
    "An admin can grant it: kubectl create clusterrole gpu-viewer --verb=get,list,watch "
    "--resource={0} && kubectl create clusterrolebinding gpu-viewer --clusterrole=gpu-viewer "
    "--user=USER"
)


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        populate(running, [*scenes.nodes(), *scenes.pods(), *failures(), *scenes.events()])
        yield running


def with_status(name: str, phase: str, *containers: Json, **status: Any) -> Json:
    pod = scenes.running(name, (1, 1), "n2", 0)
    statuses = [{"name": "c0", "restartCount": 3, **each} for each in containers]
    pod["status"] = {"phase": phase, "containerStatuses": statuses, **status}
    return pod


OOM = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2025-11-22T08:30:00Z"}
KILLED = {"exitCode": 1, "reason": "Error", "message": "no such file", "signal": 0}
BACK_OFF = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}


def failures() -> list[Json]:
    """Pods whose containers stand as the kubelet of a real cluster reports them."""
    pull = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}
    oom, runs = {"terminated": OOM}, {"running": {"startedAt": "2025-11-22T08:31:00Z"}}
    return [
        with_status("oom", "Failed", {"state": oom}),
        with_status("error", "Failed", {"state": {"terminated": KILLED}}, reason="Evicted"),
        with_status("loop", "Running", {"state": {"waiting": BACK_OFF}, "lastState": oom}),
        with_status("pull", "Pending", {"restartCount": 0, "state": {"waiting": pull}}),
        with_status("again", "Running", {"state": runs}),
        with_status("again-oom", "Running", {"state": runs, "lastState": oom}),
    ]


# --- failed pods ------------------------------------------------------------------------


KILL = "OOMKilled, exit code 137 (SIGKILL)"
LOOP = f"c0: CrashLoopBackOff: back-off 5m0s; last ended with {KILL}; restarted 3 times"


@pytest.mark.parametrize(
    ("name", "stage", "expected"),
    [
        ("oom", "failed", f"c0: {KILL}; restarted 3 times"),
        ("error", "failed", "Evicted; c0: Error, exit code 1: no such file; restarted 3 times"),
        ("loop", "failing", LOOP),
        ("pull", "failing", 'c0: ImagePullBackOff: Back-off pulling image "x"'),
        ("again-oom", "running", f"c0: last ended with {KILL}; restarted 3 times"),
    ],
)
def test_a_failed_pod_is_shown_with_its_reason(
    gpu: Gpu, name: str, stage: str, expected: str
) -> None:
    rows = gpu("pods", "--no-headers").out.splitlines()
    row = next(each for each in rows if each.startswith(f"{name} "))
    assert row.split()[1] == stage.capitalize()
    assert row.endswith(expected)
    text = gpu("explain", name).out
    assert expected in text
    assert "succeeded" not in text
    if stage != "running":
        overview = gpu().out
        section = overview.index("Failing pods (" if stage == "failing" else "Failed pods (")
        assert f"default/{name}" in overview[section:]


def test_the_status_of_a_pod_is_laid_out_and_in_json(gpu: Gpu) -> None:
    text = gpu("explain", "pod/loop").out
    assert "Containers (phase of the pod: Running)" in text
    assert re.search(r"c0 +waiting +3 +137 \(SIGKILL\) +2025-11-22T08:30:00Z +CrashLoop", text)
    (status,) = json.loads(gpu("explain", "loop", "-o=json").out)["items"][0]["pod"]["statuses"]
    assert (status["reason"], status["restarts"]) == ("CrashLoopBackOff", 3)
    assert (status["ending"]["exitCode"], status["ending"]["reason"]) == (137, "OOMKilled")


# --- permissions ------------------------------------------------------------------------


def test_without_permission_to_list_nodes_they_are_unknown(api: ApiServer, gpu: Gpu) -> None:
    api.deny(NODES, "get /api/v1/nodes/.*")
    text = gpu().out
    assert text.startswith("Nodes and cards: unknown\n")
    assert "No node has GPUs" not in text
    assert (
        "Unknown: cards, free amounts and what fits. Missing permission: list nodes (User" in text
    )
    assert f"{GRANT.format('nodes')}\n" in text
    why = 'unknown: nodes cannot be read (User "ana" cannot list /api/v1/nodes)'
    assert why in gpu("explain", "big").out
    result = gpu("nodes", "n1")
    assert (result.code, result.out) == (3, "")
    assert "cannot get /api/v1/nodes/n1. Unknown" in result.err
    assert "Missing permission: get nodes" in result.err
    found = json.loads(gpu("-o", "json").out)
    assert [(each["verb"], each["what"]) for each in found["unknown"]] == [("list", "nodes")]


def test_single_nodes_that_a_user_may_read_are_shown(api: ApiServer, gpu: Gpu) -> None:
    api.deny(NODES, "get /api/v1/nodes/n2")
    text = gpu().out
    assert re.search(r"^n1 +2x A100", text, re.MULTILINE)
    assert not re.search(r"^n2 ", text, re.MULTILINE)
    assert "Unknown (except nodes of your pods): cards, free amounts" in text
    assert gpu("nodes", "n3").out.startswith("NODE/CARD")  # by its name it may be read


def test_without_permission_to_list_pods_pending_pods_are_unknown(api: ApiServer, gpu: Gpu) -> None:
    api.deny(PODS, "get .*/pods/train")
    assert "Pending, failing and refused pods: unknown\n" in gpu().out
    text = gpu("pods").out
    assert text.startswith("Pods that request GPUs: unknown\n")
    assert "Missing permission: list pods" in text
    result = gpu("explain", "train")
    assert result.code == 3
    assert "Missing permission: get pods" in result.err
    assert "requests no GPU" not in result.err
    # One that may be read by its name is explained.
    assert "Pod default/whole runs on n1" in gpu("explain", "whole").out
    rows = gpu("pods", "-o", "name")
    assert (rows.code, rows.out) == (3, "")
    assert "Missing permission: list pods" in rows.err


def test_other_namespaces_than_a_users_own_are_unknown(api: ApiServer, gpu: Gpu) -> None:
    api.deny("list /api/v1/pods", "list /api/v1/events")
    text = gpu("pods", "-A").out
    assert "train" in text
    assert "Unknown outside namespace default: pending pods" in text
    assert GRANT.format("pods,events") in text


def test_unknown_facts_are_shown_once(api: ApiServer, gpu: Gpu) -> None:
    api.deny("list /api/v1/.*events")  # of ours, of denials, and of the pod
    assert gpu("explain", "whole").out.count("Missing permission: list events") == 1


# --- fit --------------------------------------------------------------------------------


def deployment(cores: int, replicas: int, kind: str = "Deployment") -> Json:
    limits = {NAMES.core: str(cores), NAMES.memory: "2"}
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    spec = {"replicas": replicas, "template": template}
    return {"kind": kind, "metadata": {"name": "web"}, "spec": spec}


TWO_40 = [deployment(40, 1)] * 2


@pytest.mark.parametrize(
    ("manifests", "code", "expected"),
    [
        ([deployment(10, 7)], 0, "Deployment web fits: all 7 pods on 2 nodes: n1 (4), "),
        ([deployment(10, 20)], 1, "Deployment web does not fit: 7 of 20 pods fit on 2 nodes"),
        # Each fits by itself, and both do not.
        ([deployment(40, 1), deployment(30, 1)], 0, "fits on 1 node: n2"),
        (TWO_40, 1, "Deployment web fits on no node: no card has 40 cores"),
        ([{"kind": "List", "items": TWO_40}], 1, "web fits on no node: no card has"),
        ([deployment(60, 1)], 1, "- request 40 cores instead of 60: resources.limits["),
        ([deployment(10, 1, "DaemonSet")], 1, "2 of 4 pods fit on 2 nodes: n1, n2"),
        ([deployment(150, 1)], 1, "would be denied when it is created"),
    ],
)
def test_the_exit_code_of_fit_is_about_all_pods(
    tmp_path: Path, gpu: Gpu, manifests: Sequence[Json], code: int, expected: str
) -> None:
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(manifests))
    found = gpu("fit", "-f", str(tmp_path / "all.yaml"))
    assert found.code == code, found.out
    assert expected in found.out + found.err


def test_fit_shows_how_many_pods_fit_on_each_node_and_what_is_unknown(
    api: ApiServer, tmp_path: Path, gpu: Gpu
) -> None:
    file = tmp_path / "web.json"
    file.write_text(json.dumps(deployment(10, 20)))
    (item,) = json.loads(gpu("fit", "-f", str(file), "-o", "json").out)["items"]
    assert (item["result"], item["replicas"], item["room"]) == ("does not fit", 20, 7)
    assert item["placed"] == [{"node": "n1", "pods": 4}, {"node": "n2", "pods": 3}]
    assert item["short"].startswith("no card has 10 cores and 2 blocks free (2 nodes)")
    api.deny(NODES, "get /api/v1/nodes/.*")
    found = gpu("fit", "-f", str(file))
    assert found.code == 3
    assert "Deployment web unknown" in found.out
    assert "nowhere" not in found.out
    api.restore()
    api.deny(NODES)  # some nodes are known, where some fit
    assert gpu("fit", "-f", str(file)).code == 3
    file.write_text(json.dumps(deployment(10, 2)))
    assert gpu("fit", "-f", str(file)).code == 0


# --- texts of pods ----------------------------------------------------------------------


def test_texts_of_pods_are_escaped_and_truncated_for_terminals(api: ApiServer, gpu: Gpu) -> None:
    evil = f"{scenes.HOSTILE}{'x' * 5000}"
    pod = with_status("evil", "Failed", {"state": {"terminated": {**OOM, "message": evil}}})
    populate(api, [pod])
    try:
        for words in ([], ["pods"], ["explain", "evil"], ["pods", "-o", "wide"]):
            text = gpu(*words).out
            assert r"\x1b]0;title\x07\u202e" in text
            assert all(char.isprintable() or char == "\n" for char in text)
            assert "x" * 1001 not in text
        out = gpu("explain", "evil", "-o", "json").out
        assert out.isascii()
        message = json.loads(out)["items"][0]["pod"]["statuses"][0]["ending"]["message"]
        assert message.startswith(scenes.HOSTILE)
        assert message.endswith("more characters)")
        assert gpu("explain", "evil", "-o", "yaml").out.isascii()
    finally:
        with ApiClient(api.url) as admin:
            admin.delete("/api/v1/namespaces/default/pods/evil", grace_period_seconds=0)


# --- as kubectl -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("-n default po -o=name --field-selector=status.phase=Running", ["pod/again"]),
        ("po -n=default -o name --field-selector status.phase=Running", ["pod/again"]),
        ("pods -A -oname -l app=none", []),
        ("no -o name -l nvidia.com/gpu.present=true", ["node/n4"]),
    ],
)
def test_flags_are_those_of_kubectl(gpu: Gpu, words: str, lines: list[str]) -> None:
    assert gpu(*words.split()).out.splitlines()[: len(lines) or None] == lines
    assert gpu("no/n1").code == 2


def test_order_and_headers(gpu: Gpu) -> None:
    def names(*words: str) -> list[str]:
        return [each.split()[0] for each in gpu(*words, "--no-headers").out.splitlines()]

    assert names("nodes", "node/n2", "n1", "--sort-by", "{.coresFree}")[::3] == ["n2", "n1"]
    assert names("nodes", "n2", "n1", "--sort-by=blocksFree")[::3] == ["n1", "n2"]
    ordered = names("pods", "--sort-by", ".metadata.name")
    assert ordered == sorted(ordered)
    wrong = gpu("pods", "--sort-by", ".nope")
    why = 'error: couldn\'t find any field with path ".nope" in the list of objects\n'
    assert (wrong.code, wrong.err) == (1, why)


def test_a_user_and_groups_are_impersonated(api: ApiServer, gpu: Gpu) -> None:
    assert gpu("nodes", "--as", "ana", "--as-group=a", "--as-group", "b").code == 0
    headers = api.requests[-1].headers
    assert headers["Impersonate-User"] == "ana"
    assert headers.getall("Impersonate-Group") == ["a", "b"]  # type: ignore[attr-defined]


def test_a_pod_is_named_as_it_is_printed(gpu: Gpu) -> None:
    for words in (["default/big"], ["pod/big"], ["po", "big"], ["pod/default/big"]):
        assert gpu("explain", *words).out.startswith("Pod default/big is pending")
    assert "not found" in gpu("explain", "other/big").err
    assert gpu("explain", "a", "b").code == 2


@pytest.mark.parametrize(
    "words", ["nodes", "pods -A", "explain big", "top", "cordon n1 0", "doctor"]
)
def test_each_request_has_the_timeout_of_the_flag(api: ApiServer, gpu: Gpu, words: str) -> None:
    api.fail(SILENCE)
    found = gpu(*words.split(), "--request-timeout", "500ms")
    where = api.url.rpartition("/")[2]
    assert (found.code, found.out) == (3 if words == "doctor" else 1, "")
    assert found.err == f"Unable to connect to the server: no response from {where} within 0.5 s\n"


def test_an_interrupt_ends_the_pause_before_a_repeated_request(api: ApiServer, gpu: Gpu) -> None:
    # A shell starts background jobs with it ignored.
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    api.fail(Fault(429, retry_after="29"))
    since = len(api.requests)

    def interrupt() -> None:
        eventually(lambda: requests_since(api, since), "the first request")
        os.kill(os.getpid(), signal.SIGINT)

    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(interrupt)
            assert gpu("nodes").code == 130
    finally:
        signal.signal(signal.SIGINT, given)


def test_a_command_says_once_what_its_requests_wait_for(api: ApiServer, gpu: Gpu) -> None:
    api.fail(Fault(429, retry_after="1"))
    since = len(api.requests)

    def restore() -> None:
        eventually(lambda: len(requests_since(api, since)) == 4, "its requests")
        api.restore()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(restore)
        found = gpu("nodes")
    text = "The API server responds 429 Too Many Requests: trying again in 1s, as it asks\n"
    assert (found.code, found.err) == (0, text)


@pytest.mark.parametrize("words", ["nodes", "nodes --request-timeout 1m30s", "explain big", "top"])
@pytest.mark.parametrize("later", ["3600", "Fri, 27 Nov 2026 00:00:00 GMT"])
def test_a_pause_longer_than_the_timeout_is_an_error_at_once(
    api: ApiServer, gpu: Gpu, words: str, later: str
) -> None:
    for status, reason in ((429, "TooManyRequests"), (503, "ServiceUnavailable")):
        api.fail(Fault(status, message="not now", retry_after=later))
        found = gpu(*words.split())
        assert (found.code, found.out) == (1, "")
        assert found.err == f"Error from server ({reason}): not now (Retry-After: {later})\n"


def test_a_json_list_has_its_schema_and_age(api: ApiServer, gpu: Gpu) -> None:
    kinds = {"": "Node", "pods": "Pod", "explain big": "PodExplanation", "top": "Use"}
    for words, short in kinds.items():
        kind = f"Gpu{short}List"
        found = json.loads(gpu(*words.split(), "-o", "json").out)
        assert (found["apiVersion"], found["kind"]) == ("view.gpu-turnstile.io/v1", kind)
        assert found["metadata"]["asOf"].endswith("Z")
        assert found["metadata"]["stale"] == ""
        assert found["metadata"]["server"] == api.url
        assert found["unknown"] == []
        jsonschema.validate(found, schema.schema())
        same = yaml.safe_load(gpu(*words.split(), "-o=yaml").out)
        assert (same["kind"], same["items"]) == (kind, found["items"])


def test_the_schema_of_the_documents_is_that_of_the_reports() -> None:
    """What goes, or changes its type, needs a new version: see ``documents.API_VERSION``."""
    assert schema.FILE.read_text(encoding="utf-8") == schema.text(), (
        "python -m tests.view.terminal.schema"
    )


def test_the_doctor_reports_an_unreachable_cluster_once(gpu: Gpu, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(kubeconfig_for("http://127.0.0.1:1"))
    found = gpu("doctor", "--kubeconfig", str(tmp_path / "other"))
    assert (found.code, found.out) == (3, "")
    assert found.err.startswith("The connection to the server 127.0.0.1:1 was refused - ")
    assert found.err.count("\n") == 1


@pytest.mark.parametrize("words", ["nodes", "explain x", "top", "cordon n1 0", "doctor"])
def test_a_credential_plugin_that_fails_is_run_once_for_a_command(
    gpu: Gpu, tmp_path: Path, words: str
) -> None:
    """Its requests are made at once: a plugin that asks for a password would ask for each."""
    script = f"echo run >> {tmp_path}/runs; exit 1"
    run = {"command": "sh", "args": ["-c", script], "interactiveMode": "Never"}
    user = {"exec": run | {"apiVersion": "client.authentication.k8s.io/v1"}}
    path = tmp_path / "exec"
    document = yaml.safe_load(kubeconfig_for("https://127.0.0.1:1"))
    document["users"] = [{"name": document["contexts"][0]["context"]["user"], "user": user}]
    path.write_text(yaml.safe_dump(document))
    found = gpu(*words.split(), "--kubeconfig", str(path))
    assert (found.code, found.out) == (3 if words == "doctor" else 1, "")
    assert found.err == (
        "Unable to connect to the server: getting credentials: the credential plugin sh failed "
        "with exit code 1\n"
    )
    assert (tmp_path / "runs").read_text() == "run\n"
