"""The command line against a simulated API server: what is printed, exit codes, and errors."""

import json
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.apiserver.errors import CredentialsError, Gone, Rejected
from common.errors import Unavailable
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import Json, make_pod
from tests.view.cluster.test_prometheus import prometheus
from tests.view.conftest import ManualTime, populate, requests_since
from tests.view.kueue import LOCAL_QUEUE, NO_QUOTA, QUOTA, cluster_queue, workload
from tests.view.scenes import SHAPE, claimed, owned, refused, running
from tests.view.terminal.conftest import Gpu
from tests.view.terminal.test_pages import Terminal
from view.model.usage import CardUsage, ContainerUsage, NodeUsage
from view.terminal import commands, kubectl_complete
from view.terminal.context import at_most_every
from view.terminal.faults import CommandError, as_command_errors
from view.terminal.screen import Progress

ROOT = Path(__file__).parents[3]


NO_AGENT = (
    "No agent found: no agent pod runs in namespace gpu-turnstile-node (--agent-namespace sets "
    "another). The simulator has none: its agents are not pods."
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "NODE/CARD   MODEL"),
        ("nodes n1 -o wide", "GPU-n1-0"),
        ("pods", "big      Pending    c0"),
        ("pods -n other", "No pods that request GPUs found in namespace other"),
        ("pods -A -o wide", "use-gpu-type=h100"),
        ("explain big", "Smallest change: request 40 cores instead of 60 (fits on n1, n2)"),
        ("explain pod/train --no-color", "Pod default/train runs on n1"),
        ("top", NO_AGENT),
        ("--policy spread nodes", "NODE/CARD"),
        ("--version", "kubectl gpu, version"),
    ],
)
def test_a_command_prints_its_table(gpu: Gpu, arguments: str, expected: str) -> None:
    result = gpu(*arguments.split())
    assert (result.code, result.err) == (0, "")
    assert expected in result.out


NO_GPU = "requests no GPU: no container has tencent.com/vcuda-core in its limits"
HAMI = (
    f'error: pod "hami" {NO_GPU}; write tencent.com/vcuda-core (100 is one card): gpu-turnstile '
    "does not serve nvidia.com/gpu; write tencent.com/vcuda-memory (in blocks): gpu-turnstile does "
    "not serve nvidia.com/gpumem; or accept pods of that system: "
    "docs/install.md#pods-of-other-systems\n"
)
MISSING = "Error from server (NotFound)"
ELSEWHERE = f'{MISSING}: pods "train" not found: there is one in namespace default\n'


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ("explain unknown", 1, f'{MISSING}: pods "unknown" not found\n'),
        ("explain train -n other", 1, ELSEWHERE),
        ("explain plain", 1, f'error: pod "plain" {NO_GPU}\n'),
        ("explain hami", 1, HAMI),
        ("nodes nowhere", 1, f'{MISSING}: nodes "nowhere" not found\n'),
        ("top nowhere", 1, f'{MISSING}: nodes "nowhere" not found\n'),
        ("cordon nowhere 0", 1, f'{MISSING}: nodes "nowhere" not found\n'),
        ("nodes n5", 1, 'error: node "n5" has no GPUs\n'),
        ("--context other pods", 1, None),
        ("--kubeconfig /no/such pods", 1, "error: stat /no/such: no such file or directory\n"),
        ("--domain Not_A_Domain pods", 1, None),
        ("fit -f /no/such", 2, None),
        ("explode", 2, None),
    ],
)
def test_an_error_is_one_line_in_the_words_of_kubectl(
    gpu: Gpu, arguments: str, code: int, error: str | None
) -> None:
    result = gpu(*arguments.split())
    assert (result.code, result.out) == (code, "")
    assert result.err == error if error else result.err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: Service", "error: kind: Unsupported value: 'Service'"),
        ("- 1", "error: error parsing {}: a manifest must be an object\n"),
        ("a: [", "error: error parsing {}: line 1, column 5: expected the node content"),
        ("a: b: c", "error: error parsing {}: line 1, column 5: mapping values are not allowed"),
        ("a: \0", "error: error parsing {}: "),
        ("---\n", "error: no objects passed to fit"),
    ],
)
def test_a_manifest_that_cannot_be_read_ends_fit_with_2(
    gpu: Gpu, kubeconfig: Path, text: str, error: str
) -> None:
    manifest = kubeconfig.with_name("pod.yaml")
    manifest.write_text(text)
    result = gpu("fit", "-f", str(manifest))
    assert (result.code, result.out) == (2, "")
    assert error.format(manifest) in result.err


def test_fit_exits_with_3_if_the_cluster_is_unreachable(
    gpu_without_cluster: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pod.yaml").write_text(json.dumps(make_pod("a", (40, 4))))
    result = gpu_without_cluster("fit", "-f", str(tmp_path / "pod.yaml"))
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("error: no configuration has been provided")


@pytest.mark.parametrize("command", ["", "nodes", "pods", "explain", "fit", "top"])
def test_help_is_whole_sentences_and_has_every_default(
    command: str, gpu_without_cluster: Gpu
) -> None:
    text = gpu_without_cluster(*command.split(), "--help").out
    assert "..." not in text.replace("[ARGS]...", "").replace("[NODE]...", "")
    assert text.count("[default") >= 6
    assert "\\b" not in text


USE = NodeUsage(
    "n1",
    measured=True,
    cards=(CardUsage("GPU-n1-0", 60, 40, 0, 0, 12, 0),),
    containers=(ContainerUsage("default", "train", "c0", ("GPU-n1-0",), 60, 0, 12, 0),),
)


def test_pods_show_what_agents_measure_of_them(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "read_usages", lambda *_args, **_kwargs: (USE,))
    assert "12 cores, 0.0 GiB" in gpu("pods").out
    assert "USED" not in gpu("pods", "--no-use").out


def test_the_last_day_is_queried_from_prometheus(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "For the last day, set --prometheus URL (or GPU_TURNSTILE_P" in gpu("top").out
    with prometheus() as server:
        monkeypatch.setenv("GPU_TURNSTILE_PROMETHEUS", server.url)
        assert gpu("top").out.splitlines()[2:7] == [
            "Last day (12.0 hours observed)",
            "POD        CARD HOURS HELD   CARD HOURS IDLE   IDLE %",
            "team/a     2.00              0.30              30%",
            "team/b     0.10              unknown           unknown",
            "team/odd   unknown           unknown           unknown",
        ]
        assert "team/a" not in gpu("top", "-n", "other").out
    day = json.loads(gpu("top", "-o", "json").out)["lastDay"]
    assert day["problem"] == "Prometheus is unreachable: Connection refused"
    refused = gpu("top", "--prometheus", "prometheus:9090")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith('error: --prometheus: Invalid value: "prometheus:9090": must be')


def test_forbidden_agents_are_an_error_only_with_use(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = Mock(side_effect=Rejected(403, "pods is forbidden"))
    monkeypatch.setattr(commands, "read_usages", refuse)
    assert (gpu("pods").code, gpu("pods").err) == (0, "")
    result = gpu("pods", "--use")
    assert result.code == 1
    assert result.err == "Error from server (Forbidden): pods is forbidden\n"


_REFUSED = (
    "The connection to the server h:6443 was refused - did you specify the right host or port?"
)
_ETCD = "Error from server (ServiceUnavailable): no etcd"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Rejected(401, "no"), "error: You must be logged in to the server (Unauthorized)"),
        (Rejected(403, "no"), "Error from server (Forbidden): no"),
        (Rejected(418, "tea\x1b[31m"), r"Error from server: tea\x1b[31m"),
        (Gone("old"), "Error from server (Expired): old"),
        (CredentialsError("bad"), "error: bad"),
        (Unavailable("API server: connection refused by h:6443"), _REFUSED),
        (Unavailable("API server: 503 no etcd"), _ETCD),
        (Unavailable("API server: 599 odd"), "Error from server: odd"),
        (Unavailable("API server: timed out"), "Unable to connect to the server: timed out"),
    ],
)
def test_errors_have_the_words_of_kubectl(error: Exception, text: str) -> None:
    with pytest.raises(CommandError) as caught, as_command_errors(7):
        raise error
    assert (str(caught.value.message), caught.value.code) == (text, 7)


_SORT = ["--sort-by\tSort by a field of -o json, for example coresFree or .metadata.name."]
_HEADERS = ["--no-headers\tPrint rows only, for scripts; what is unknown goes to standard error."]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ex"], ["explain\tExplain why a pod is pending, or its cards.", ":4"]),
        (["explain", "b"], ["big", "bound", ":4"]),
        (["nodes", "n"], ["n1", "n2", "n3", ":4"]),
        (["pods", "-n", "kube-s"], ["kube-system", ":4"]),
        (["fit", "-f", ""], [":0"]),
        (["pods", "-o", "j"], ["json", ":4"]),
        (["explain", "--context", "none", "b"], [":4"]),
        (["pods", "--context", ""], ["simulated", ":4"]),
        (["pods", "--sort-b"], [*_SORT, ":4"]),
        (["-o=wide", "nodes", "n1", "--no-h"], [*_HEADERS, ":4"]),
    ],
)
def test_words_are_completed_in_the_protocol_of_kubectl(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    kubectl_complete.main(words)
    assert capsys.readouterr().out.splitlines() == expected


def test_progress_is_shown_in_a_terminal_and_removed() -> None:
    for out, quiet in ((StringIO(), 0.0), (Terminal(), 60.0)):
        silent = Progress(out, quiet)
        silent("pods", 500)
        silent.end()
        assert out.getvalue() == ""
    terminal = Terminal()
    progress = Progress(terminal, 0.0)
    progress("pods", 500)
    progress("nodes", 100)
    shown = "Reading the cluster: 100 nodes, 500 pods"
    eventually(lambda: shown in terminal.getvalue(), "it is shown")
    progress.end()
    output = terminal.getvalue()
    progress("pods", 900)  # which a watch reads again, below its page
    assert terminal.getvalue() == output
    assert output.endswith("\x1b[2K")


def test_a_result_is_read_again_after_some_seconds_and_kept_if_that_fails() -> None:
    now, failure = ManualTime(), Unavailable("no response")
    read = at_most_every(15, Mock(side_effect=[1, 2, failure, 3]), now)
    found = []
    for seconds in (0, 14, 1, 15, 14, 1):
        now.now += seconds
        found.append(read())
    assert found == [1, 1, 2, 2, 2, 3]
    with pytest.raises(Unavailable):
        at_most_every(15, Mock(side_effect=failure))()


@pytest.mark.slow
def test_without_its_extra_the_plugin_names_it() -> None:
    """The base package lacks ``rich``."""
    program = "import sys; sys.modules['rich'] = None; from view.kubectl import main; main()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    text = "error: kubectl-gpu needs the extra kubectl: pip install 'gpu-turnstile[kubectl]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", text)


def test_explain_reads_the_template_that_a_pod_waits_for(server: ApiServer, gpu: Gpu) -> None:
    server.apply(claimed(make_pod("claimant", (30, 4), uid="")))
    (item,) = json.loads(gpu("explain", "claimant", "-o", "json").out)["items"]
    assert (item["pod"]["claimTemplate"], item["pod"]["claim"]) == (SHAPE, "")
    text = f"is pending: it waits for a claim: template {SHAPE} is not made yet."
    assert item["summary"].startswith(text)
    with ApiClient(server.url) as admin:
        admin.delete("/api/v1/namespaces/default/pods/claimant", grace_period_seconds=0)


def _deployment(name: str, replicas: int, **limits: str) -> Json:
    containers = [{"name": "c", "image": "none", "resources": {"limits": limits}}]
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


_DEPLOYMENTS = [
    _deployment("off", 0, **{"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}),
    _deployment("hami", 1, **{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}),
]


@pytest.fixture
def workloads(server: ApiServer) -> Iterator[None]:
    """Pods of a Deployment, one bound; of a CronJob's Job; one in a namespace of a kind's name."""
    pods = [
        owned(
            make_pod("web-7f-a", (30, 4), node="n1", uid=""), "ReplicaSet", "web-7f", revision="7f"
        ),
        owned(make_pod("web-7f-b", (30, 4), uid=""), "ReplicaSet", "web-7f", revision="7f"),
        owned(make_pod("night-28-x", (30, 4), uid=""), "Job", "night-28"),
        make_pod("web", (30, 4), uid="", namespace="job"),
    ]
    server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "job"}})
    for each in (*pods, *_DEPLOYMENTS):
        server.apply(each)
    yield
    with ApiClient(server.url) as admin:
        for each in _DEPLOYMENTS:
            name = each["metadata"]["name"]
            admin.delete(f"/apis/apps/v1/namespaces/default/deployments/{name}")
        for each in pods:
            of = each["metadata"]
            path = f"/api/v1/namespaces/{of['namespace']}/pods/{of['name']}"
            admin.delete(path, grace_period_seconds=0)


_BOTH = "Found 2 pods, using pod/web-7f-b\n"
_NONE = "has no pod that requests GPUs in namespace default, or does not exist\n"
_OTHER = (
    "requests no GPU: no container has tencent.com/vcuda-core in its limits; write "
    "tencent.com/vcuda-core (100 is one card): gpu-turnstile does not serve nvidia.com/gpu; write "
    "tencent.com/vcuda-memory (in blocks): gpu-turnstile does not serve nvidia.com/gpumem; or "
    "accept pods of that system: docs/install.md#pods-of-other-systems\n"
)
_DENIED = 'cannot be created: admission webhook "pods.gpu-turnstile.io" denied the request'


def _job(name: str, queue: str = "", *, suspend: bool = True, cores: str = "60") -> Json:
    limits = {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": "4"}
    template = _deployment(name, 6, **limits)["spec"]["template"]
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    spec = {"parallelism": 6, "completions": 6, "suspend": suspend, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


_SUSPENDED = 'error: Job "{}" has no new pods: spec.suspend is true'
_HELD = "Job default/train has no pods: it waits in queue team-a (ClusterQueue gpus)"


def test_of_a_job_that_kueue_holds_its_workload_is_explained(
    server: ApiServer, api: ApiServer, gpu: Gpu
) -> None:
    for each in (LOCAL_QUEUE, cluster_queue(), _job("train", "team-a"), _job("new", "team-a")):
        server.apply(each)
    child, of_set = _job("child"), workload(NO_QUOTA, owner={"metadata": {"uid": "u-set"}})
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set"}
    child["metadata"]["ownerReferences"] = [{**owner, "uid": "u-set", "controller": True}]
    of_set["metadata"] |= {"name": "jobset-set-77", "uid": "w-set"}
    server.apply(_job("paused"), child, of_set)
    with ApiClient(server.url) as admin:
        jobs, workloads = (
            f"/apis/{each}/namespaces/default/" for each in ("batch/v1", "kueue.x-k8s.io/v1beta2")
        )
        job = admin.get(f"{jobs}jobs/train")
        server.apply(workload(NO_QUOTA, owner=job))
        try:
            page = gpu("explain", "job/train")
            (item,) = json.loads(gpu("explain", "job", "train", "-o", "json").out)["items"]
            named = gpu("explain", "job/train", "-o", "name").out
            new, paused = gpu("explain", "job/new"), gpu("explain", "job/paused")
            nested = gpu("explain", "job/child")
            api.deny("(list|get) /apis/kueue.*")
            denied, other = gpu("explain", "job/train"), gpu("explain", "job/paused")
        finally:
            for name in ("train", "new", "paused", "child"):
                admin.delete(f"{jobs}jobs/{name}")
            for name in ("job-train-1f2e3", "jobset-set-77"):
                admin.delete(f"{workloads}workloads/{name}")
    assert (page.code, page.err) == (0, "")
    assert page.out.startswith(f'{_HELD} for quota: "{QUOTA}".\nWorkload job-train-1f2e3; created ')
    assert "kubectl get job train -n default -o yaml | kubectl gpu fit -f -\n" in page.out
    assert (item["kind"], item["name"], item["queue"]["state"]) == ("Job", "train", "pending")
    assert named == "job/train\n"
    assert new.out.startswith("Job default/new has no pods: Kueue has not made a Workload for it ")
    assert "\nWorkload jobset-set-77; created " in nested.out
    assert (paused.code, paused.err) == (1, f"{_SUSPENDED.format('paused')}\n")
    # What may not be read is unknown, whether it is in a queue or not.
    for name, result in (("train", denied), ("paused", other)):
        text = f"{_SUSPENDED.format(name)}; what Kueue has decided about it is unknown ("
        assert (result.code, result.out, result.err[: len(text)]) == (3, "", text)
        assert "cannot list /apis/kueue.x-k8s.io/v1beta2/namespaces/default/w" in result.err


@pytest.mark.usefixtures("workloads")
@pytest.mark.parametrize(
    ("words", "pod", "error"),
    [
        ("deploy/web", "default/web-7f-b", _BOTH),
        ("deployments.apps/web", "default/web-7f-b", _BOTH),
        ("deploy web", "default/web-7f-b", _BOTH),
        ("deploy default/web -n other", "default/web-7f-b", _BOTH),
        ("rs/web-7f", "default/web-7f-b", _BOTH),
        ("job/night-28", "default/night-28-x", ""),
        ("cronjob/night", "default/night-28-x", ""),
        ("job/web", "job/web", ""),  # NAMESPACE/NAME
        ("deploy/none", "", f'error: Deployment "none" {_NONE}'),
        ("deploy/off", "", 'error: Deployment "off" has no pods: spec.replicas is 0\n'),
        ("deploy/hami", "", f'error: Deployment "hami" {_OTHER}'),
        ("sts/web", "", f'error: StatefulSet "web" {_NONE}'),
        ("deploy/web -n other", "", None),
        ("node/n1", "", "error: pods are explained; for a node: kubectl gpu nodes n1\n"),
        ("svc/x", "", f'{MISSING}: pods "x" not found: in namespace svc\n'),
    ],
)
def test_of_a_workload_the_pod_that_needs_it_most_is_explained(
    gpu: Gpu, words: str, pod: str, error: str | None
) -> None:
    result = gpu("explain", *words.split())
    assert result.out.startswith(f"Pod {pod} is pending") if pod else not result.out
    assert result.err == error if error is not None else result.code == 1


@pytest.mark.parametrize(
    ("replicas", "said"),
    [(1, "has all its pods: 1 of 1 run"), (0, "has no pods: spec.replicas is 0"), (2, "")],
)
def test_of_a_workload_with_all_its_pods_no_refused_one_is_explained(
    server: ApiServer, gpu: Gpu, replicas: int, said: str
) -> None:
    objects = [
        owned(refused("done-7f-b", (30, 4), "n1", "no"), "ReplicaSet", "done-7f", revision="7f"),
        owned(running("done-7f-a", (30, 4), "n1", 0), "ReplicaSet", "done-7f", revision="7f"),
        _deployment("done", replicas, **{"tencent.com/vcuda-core": "30"}),
    ]
    populate(server, objects)
    try:
        result = gpu("explain", "deploy/done")
    finally:
        with ApiClient(server.url) as admin:
            admin.delete("/apis/apps/v1/namespaces/default/deployments/done")
            for each in objects[:2]:
                path = f"/api/v1/namespaces/default/pods/{each['metadata']['name']}"
                admin.delete(path, grace_period_seconds=0)
    assert result.err == f"Deployment done {said}\n" * bool(said) + (
        "Found 2 pods, using pod/done-7f-a\n"
    )


@pytest.mark.parametrize("word", ["rs/web-5d", "deployment web"])
def test_of_a_workload_without_pods_the_denial_is_shown(
    api: ApiServer, gpu: Gpu, word: str
) -> None:
    api.deny("get /apis/apps/.*")  # else it is known that there is no such ReplicaSet
    result = gpu("explain", *word.split())
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: pods of ")
    assert result.err.endswith(f"{_DENIED}: 150 is not whole\n")


@pytest.mark.parametrize("command", ["", "nodes", "pods", "explain big", "doctor"])
def test_only_the_doctor_reads_the_api_of_claims_in_a_cluster_without_claims(
    server: ApiServer, gpu: Gpu, command: str
) -> None:
    since = len(server.requests)
    shown = gpu(*command.split())
    requests = [each for each in requests_since(server, since) if "resource.k8s.io" in each]
    api = "/apis/resource.k8s.io/v1"
    kinds = ("resourceclaimtemplates", "resourceslices", "resourceslices")
    all_of_them = [
        f"get {api}/deviceclasses/gpu.tencent.com",
        *(f"list {api}/{each}" for each in kinds),
    ]
    assert sorted(requests) == (all_of_them if command == "doctor" else [])
    assert "claim" not in shown.out.replace("uses claims", "")
