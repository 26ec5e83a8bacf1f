"""The program against a simulated API server: templates come, come back and go; two replicas."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from claims.__main__ import main
from claims.cluster import ClaimsApi
from claims.metrics import Metrics
from claims.program import ClaimsProgram
from claims.settings import Settings
from claims.state import TemplateState, read_template
from claims.writer import REASON, TemplateWriter
from common.errors import Unavailable
from contract.names import Names
from simulator.api.faults import Fault, Outage
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.api.server import Settings as ServerSettings
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.claims.test_state import ELSEWHERE, Json, make_pod, make_template

NAMES = Names()
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates"
EVENTS = "/api/v1/namespaces/team/events"
Start = Callable[[], ClaimsProgram]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(ServerSettings(bookmark_s=0.1)) as running:
        for name in ("team", "broken-a", "broken-b", "broken-c"):
            running.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield running


@pytest.fixture
def admin(server: ApiServer) -> Iterator[ApiClient]:
    with ApiClient(server.url) as client:
        yield client


@pytest.fixture
def settings(server: ApiServer, tmp_path: Path) -> Settings:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for(server.url))
    return Settings(
        kubeconfig=path,
        names=NAMES,
        most_templates=2,
        unused=3600.0,
        http_host="127.0.0.1",
        http_port=0,
    )


@pytest.fixture
def start(settings: Settings) -> Iterator[Start]:
    running: list[ClaimsProgram] = []

    def begin() -> ClaimsProgram:
        program = ClaimsProgram(settings)
        running.append(program)
        program.start()
        eventually(lambda: not program.not_ready(), "it is in step")
        return program

    yield begin
    for each in running:
        each.stop()


def cores(admin: ApiClient) -> list[str]:
    """Return the cores that each template of the namespace asks for, sorted."""
    found = [
        each["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["cores"]
        for each in admin.get(TEMPLATES)["items"]
    ]
    return sorted(found)


def events(admin: ApiClient) -> list[tuple[str, str]]:
    return sorted(
        (each["involvedObject"]["name"], each["message"])
        for each in admin.get(EVENTS)["items"]
        if each["reason"] == REASON
    )


def counted(program: ClaimsProgram, result: str) -> float:
    value = program.metrics.registry.get_sample_value(
        "gpu_turnstile_claims_writes_total", {"result": result}
    )
    assert value is not None
    return value


def test_a_template_comes_for_pods_before_and_after_the_start_and_comes_back(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    server.apply(make_pod("a", uid=""))
    start()
    eventually(lambda: cores(admin) == ["30"], "the template of the first pod")
    server.apply(make_pod("b", 40, uid=""), make_pod("c", 40, uid=""))
    eventually(lambda: cores(admin) == ["30", "40"], "the template of both others")
    (made,) = (each for each in admin.get(TEMPLATES)["items"] if cores_of(each) == "30")
    expected = make_template(make_pod("a"))
    assert made["spec"] == expected["spec"]
    assert made["metadata"]["labels"] == expected["metadata"]["labels"]
    admin.delete(f"{TEMPLATES}/{made['metadata']['name']}")
    eventually(lambda: cores(admin) == ["30", "40"], "the template is back")
    assert events(admin) == []


def cores_of(template: Json) -> str:
    request = template["spec"]["spec"]["devices"]["requests"][0]
    return str(request["exactly"]["capacity"]["requests"]["cores"])


def test_a_pod_without_a_template_is_told_why(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    start()
    start()  # a second replica says nothing twice
    server.apply(make_pod("a", template=ELSEWHERE, uid=""))
    server.apply(*(make_pod(f"p{each}", each, uid="") for each in (1, 2)))
    eventually(lambda: cores(admin) == ["1", "2"], "as many as are allowed")
    server.apply(make_pod("p3", 3, uid=""))
    eventually(lambda: len(events(admin)) == 2, "two pods wait")
    (changed, too_many) = events(admin)
    own = make_template(make_pod("a"))["metadata"]["name"]
    assert changed[1].startswith(f"template {ELSEWHERE} is not made: its limits need {own}. ")
    assert too_many[0] == "p3"
    assert "pods of namespace team use 2 others, no more are allowed (--most-tem" in too_many[1]
    assert cores(admin) == ["1", "2"]


def test_every_pod_of_many_is_told(server: ApiServer, admin: ApiClient, start: Start) -> None:
    for index in range(25):
        server.apply(make_pod(f"p{index}", template=ELSEWHERE, uid=""))
    start()
    eventually(lambda: len(events(admin)) == 25, "all are told")


def test_two_replicas_make_each_template_once_and_one_is_enough(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    one, other = start(), start()
    server.apply(make_pod("a", uid=""))
    eventually(lambda: cores(admin) == ["30"], "the template")
    eventually(lambda: counted(one, "created") + counted(other, "created") == 1, "by one of them")
    one.stop()
    server.apply(make_pod("b", 40, uid=""))
    eventually(lambda: cores(admin) == ["30", "40"], "by the other one")
    assert other.broken() == ""


def test_a_killed_replica_costs_nothing(
    server: ApiServer, admin: ApiClient, settings: Settings
) -> None:
    command = [
        *(sys.executable, "-m", "claims", "--kubeconfig", str(settings.kubeconfig)),
        *("--http-host", "127.0.0.1", "--http-port", "0"),
    ]
    replicas = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for each in replicas:
            assert each.stderr is not None
            assert '"message":"serving"' in each.stderr.readline()
        for index in range(1, 21):
            server.apply(make_pod(f"p{index}", index, uid=""))
            if index == 10:
                replicas[0].kill()
        eventually(lambda: len(cores(admin)) == 20, "all templates, by one replica")
        replicas[1].terminate()
        assert replicas[1].wait(30) == 0
    finally:
        for each in replicas:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("fault", [Fault(429, retry_after="0"), Fault(500), Fault(503)])
def test_an_api_server_that_fails_is_asked_again(
    server: ApiServer, admin: ApiClient, start: Start, fault: Fault
) -> None:
    program = start()
    server.fail(fault, "create .*resourceclaimtemplates")
    server.apply(make_pod("a", uid=""))
    eventually(lambda: counted(program, "unavailable"), "it fails")
    server.restore()
    eventually(lambda: cores(admin) == ["30"], "the template")


def test_a_template_that_always_fails_holds_up_no_other(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    """As with another webhook, of one namespace, that cannot be reached."""
    server.fail(Fault(500), "create .*/namespaces/broken-./resourceclaimtemplates")
    for index, namespace in product((1, 2), ("broken-a", "broken-b")):
        server.apply(make_pod(f"a{index}", index, namespace=namespace, uid=""))
    program = start()
    eventually(lambda: counted(program, "unavailable") >= 3, "they fail")
    server.apply(make_pod("b", 40, uid=""))
    eventually(lambda: cores(admin) == ["40"], "the template of the other namespace")


def test_templates_that_have_failed_come_after_a_new_one(
    server: ApiServer, admin: ApiClient, settings: Settings
) -> None:
    server.fail(Fault(500), "create .*/namespaces/broken-./resourceclaimtemplates")
    state, api, now = TemplateState(NAMES), ClaimsApi(settings.kubeconfig), [0.0]
    writer = TemplateWriter(
        state, api, Metrics(), names=NAMES, most=500, unused=3600, clock=lambda: now[0]
    )

    def write() -> None:
        items, _, _ = api.list("/api/v1/pods", {})
        for pod in map(state.read_pod, items):
            assert pod is not None
            state.put(pod)
        with pytest.raises(Unavailable):
            writer.write()

    server.apply(*(make_pod("a", namespace=f"broken-{each}", uid="") for each in "abc"))
    write()
    server.apply(make_pod("b", 40, uid=""))
    now[0] += 3600  # all are tried again
    write()
    assert cores(admin) == ["40"]
    api.close()


def test_a_pod_that_has_changed_since_the_watch_showed_it_gets_no_template(
    server: ApiServer, admin: ApiClient, settings: Settings
) -> None:
    state, api = TemplateState(NAMES), ClaimsApi(settings.kubeconfig)
    shown = state.read_pod(make_pod("a"))
    assert shown is not None
    state.put(shown)
    server.apply(make_pod("a", 40, uid=""))
    TemplateWriter(state, api, Metrics(), names=NAMES, most=500, unused=3600).write()
    assert cores(admin) == []
    api.close()


def test_an_outage_with_missed_events_is_survived(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    server.apply(make_pod("a", uid=""))
    start()
    eventually(lambda: cores(admin) == ["30"], "the template")
    server.set_outage(Outage.REFUSED)
    server.set_outage(Outage.NONE)
    for each in admin.get(TEMPLATES)["items"]:
        admin.delete(f"{TEMPLATES}/{each['metadata']['name']}")
    server.apply(make_pod("b", 40, uid=""))
    server.expire_history()
    eventually(lambda: cores(admin) == ["30", "40"], "both")


def test_a_refusal_is_said_and_asked_again_later(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    program = start()
    server.deny("create .*resourceclaimtemplates")
    server.apply(make_pod("a", uid=""), make_pod("b", uid=""))
    eventually(lambda: len(events(admin)) == 2, "it is said to both")
    assert all("the API server refuses it: " in text for _, text in events(admin))
    assert counted(program, "refused") == 1
    server.restore()
    eventually(lambda: cores(admin) == ["30"], "the template")


def test_a_template_with_another_spec_is_replaced(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    foreign = make_template(make_pod("a"))
    request = foreign["spec"]["spec"]["devices"]["requests"][0]
    request["exactly"]["capacity"]["requests"]["cores"] = "100"
    server.apply(foreign)
    program = start()
    server.apply(make_pod("a", uid=""))
    eventually(lambda: cores(admin) == ["30"], "its own")
    assert counted(program, "replaced") == 1


def test_unused_templates_are_swept(
    server: ApiServer, admin: ApiClient, settings: Settings
) -> None:
    pod, now = make_pod("a"), [0.0]
    server.apply(make_template(pod))
    state, api, metrics = TemplateState(NAMES), ClaimsApi(settings.kubeconfig), Metrics()
    writer = TemplateWriter(
        state, api, metrics, names=NAMES, most=500, unused=60, clock=lambda: now[0]
    )
    items, _, _ = api.list(TEMPLATES, {})
    template = read_template(items[0])
    assert template is not None
    state.put(template)
    writer.write()
    assert cores(admin) == ["30"]
    now[0] = 60.0
    server.fail(Fault(503), "delete .*")
    with pytest.raises(Unavailable):
        writer.write()
    server.deny("delete .*")
    writer.write()
    refused = {"result": "refused"}
    assert metrics.registry.get_sample_value("gpu_turnstile_claims_writes_total", refused) == 1
    writer.write()  # not at once again
    assert metrics.registry.get_sample_value("gpu_turnstile_claims_writes_total", refused) == 1
    server.restore()
    now[0] += 2
    writer.write()
    assert cores(admin) == []
    now[0] += 2
    writer.write()  # another replica was faster
    # The UID is a condition: a template of the same name that came since stays.
    server.apply(make_template(pod))
    now[0] += 2
    writer.write()
    assert cores(admin) == ["30"]
    api.close()


def test_a_namespace_with_many_templates_holds_up_no_others(
    server: ApiServer, admin: ApiClient, settings: Settings
) -> None:
    state, api = TemplateState(NAMES), ClaimsApi(settings.kubeconfig)
    writer = TemplateWriter(state, api, Metrics(), names=NAMES, most=500, unused=3600)
    pods = [make_pod(f"p{each}", each, namespace="broken-a", uid="") for each in range(1, 31)]
    server.apply(*pods, make_pod("a", uid=""))
    items, _, _ = api.list("/api/v1/pods", {})
    for pod in sorted(map(state.read_pod, items), key=str):
        assert pod is not None
        state.put(pod)
    state.changed.clear()
    writer.write()
    assert cores(admin) == ["30"]
    assert state.changed.is_set()  # the other one's rest follows
    api.close()


def test_probes_and_metrics(server: ApiServer, admin: ApiClient, start: Start) -> None:
    program = start()
    server.apply(make_pod("a", uid=""))
    eventually(lambda: cores(admin) == ["30"], "the template")

    def page(path: str) -> str:
        url = f"http://127.0.0.1:{program.http_port}{path}"
        with urllib.request.urlopen(url) as response:
            return str(response.read().decode())

    assert (page("/healthz"), page("/readyz")) == ("ok\n", "ok\n")
    assert "gpu_turnstile_claims_templates 1.0" in page("/metrics")
    assert "gpu_turnstile_claims_waiting_pods 1.0" in page("/metrics")


def test_it_is_not_ready_before_the_first_lists(server: ApiServer, settings: Settings) -> None:
    server.deny("list .*")
    program = ClaimsProgram(settings)
    program.start()
    url = f"http://127.0.0.1:{program.http_port}/readyz"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url)
    assert caught.value.read() == b"pods and templates are not listed yet\n"
    caught.value.close()
    program.stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--domain", "a" * 60], "must have at most 59 characters for claims"),
        (["--most-templates", "0"], "Invalid value for '--most-templates'"),
        (["--unused", "1"], "Invalid value for '--unused'"),
        (["--kubeconfig", "/nowhere"], "--kubeconfig"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith("claims: error: ")
    assert message in line
    assert line.count("\n") == 1
