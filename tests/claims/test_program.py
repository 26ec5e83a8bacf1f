"""The program against a simulated API server: templates come, come back and are swept."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from claims.__main__ import main
from claims.cluster import TEMPLATES as ALL_TEMPLATES
from claims.cluster import ClaimsApi
from claims.metrics import Metrics
from claims.program import ClaimsProgram
from claims.settings import Settings
from claims.state import ClaimedPod, KnownTemplate, TemplateState, read_template
from claims.writer import REASON, TemplateWriter
from common.errors import Unavailable
from common.metrics import ProgramMetrics
from contract.names import Names
from simulator.api.faults import Fault, Outage
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.api.server import Settings as ServerSettings
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.claims.test_state import ELSEWHERE, make_pod, make_template
from tests.common.serving.through import fetch

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


def counted(metrics: ProgramMetrics, result: str) -> float:
    name = "gpu_turnstile_claims_writes_total"
    return metrics.registry.get_sample_value(name, {"result": result}) or 0.0


def test_a_template_comes_for_pods_before_and_after_the_start_and_comes_back(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    server.apply(make_pod("a", uid=""))
    program = start()
    eventually(lambda: cores(admin) == ["30"], "the template of the first pod")
    (made,) = admin.get(TEMPLATES)["items"]
    expected = make_template(make_pod("a"))
    assert made["spec"] == expected["spec"]
    assert made["metadata"]["labels"] == expected["metadata"]["labels"]
    server.apply(make_pod("b", 40, uid=""), make_pod("c", 40, uid=""))
    eventually(lambda: cores(admin) == ["30", "40"], "the template of both others")
    admin.delete(f"{TEMPLATES}/{made['metadata']['name']}")
    eventually(lambda: cores(admin) == ["30", "40"], "the template is back")
    assert events(admin) == []
    for path, part in (
        *(("/healthz", "ok\n"), ("/readyz", "ok\n")),
        ("/metrics", "gpu_turnstile_claims_waiting_pods 3.0"),
    ):
        status, text = fetch(program.http_port, path)
        assert status == 200
        assert part in text
    assert program.broken() == ""


def test_a_pod_without_a_template_gets_an_event_with_the_reason(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    start()
    start()  # a second replica reports nothing twice
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
        assert replicas[1].wait(120) == 0
    finally:
        for each in replicas:
            each.kill()
            each.communicate()


def test_outages_and_missed_events_are_survived(
    server: ApiServer, admin: ApiClient, start: Start
) -> None:
    server.apply(make_pod("a", uid=""))
    program = start()
    eventually(lambda: cores(admin) == ["30"], "the template")
    server.set_outage(Outage.REFUSED)
    server.set_outage(Outage.NONE)
    for each in admin.get(TEMPLATES)["items"]:
        admin.delete(f"{TEMPLATES}/{each['metadata']['name']}")
    server.fail(Fault(503), "create .*resourceclaimtemplates")
    server.apply(make_pod("b", 40, uid=""))
    server.expire_history()
    eventually(lambda: counted(program.metrics, "unavailable"), "it fails")
    server.restore()
    eventually(lambda: cores(admin) == ["30", "40"], "both")


def test_a_replica_is_not_ready_before_the_first_lists(
    server: ApiServer, settings: Settings
) -> None:
    server.deny("list .*")
    program = ClaimsProgram(settings)
    program.start()
    missing = "pods and templates are not listed yet\n"
    assert fetch(program.http_port, "/readyz") == (503, missing)
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


class Replica:
    """A replica without threads: a test decides when it reads the cluster and writes."""

    def __init__(self, server: ApiServer, admin: ApiClient, settings: Settings) -> None:
        self.server, self.admin = server, admin
        self.state, self.metrics = TemplateState(NAMES), Metrics()
        self.api = ClaimsApi(settings.kubeconfig)
        self.now = 0.0
        self.write = TemplateWriter(
            *(self.state, self.api, self.metrics),
            names=NAMES,
            most=500,
            unused=60,
            clock=lambda: self.now,
            wall_clock=lambda: 1_767_225_600.0,
        ).write

    def read(self) -> None:
        pods, _, _ = self.api.list("/api/v1/pods", {})
        found = [self.state.read_pod(each) for each in pods]
        self.state.replace(ClaimedPod, [each for each in found if each])
        templates, _, _ = self.api.list(ALL_TEMPLATES, {})
        read = [read_template(each) for each in templates]
        self.state.replace(KnownTemplate, [each for each in read if each])
        self.state.changed.clear()


@pytest.fixture
def replica(server: ApiServer, admin: ApiClient, settings: Settings) -> Iterator[Replica]:
    found = Replica(server, admin, settings)
    yield found
    found.api.close()


@pytest.mark.parametrize("fault", [Fault(429, retry_after="0"), Fault(500), Fault(503)])
def test_a_template_whose_creation_failed_is_created_later(replica: Replica, fault: Fault) -> None:
    replica.server.fail(fault, "create .*resourceclaimtemplates")
    replica.server.apply(make_pod("a", uid=""))
    replica.read()
    replica.write()
    assert counted(replica.metrics, "unavailable") == 1
    replica.server.restore()
    replica.write()
    assert cores(replica.admin) == [], "not at once again"
    replica.now += 1
    replica.write()
    assert cores(replica.admin) == ["30"]
    replica.now += 1
    replica.write()  # its watch does not show the template yet
    assert [counted(replica.metrics, each) for each in ("created", "found")] == [1, 1]


def test_templates_whose_creation_failed_come_after_a_new_one(replica: Replica) -> None:
    """As with another webhook, of one namespace, that cannot be reached."""
    replica.server.fail(Fault(500), "create .*/namespaces/broken-./resourceclaimtemplates")
    replica.server.apply(*(make_pod("a", namespace=f"broken-{each}", uid="") for each in "abc"))
    replica.read()
    with pytest.raises(Unavailable):
        replica.write()
    replica.server.apply(make_pod("b", 40, uid=""))
    replica.read()
    replica.now += 3600  # all are due again
    with pytest.raises(Unavailable):
        replica.write()
    assert cores(replica.admin) == ["40"]


def test_a_pod_that_has_changed_since_the_watch_showed_it_gets_no_template(
    replica: Replica,
) -> None:
    shown = replica.state.read_pod(make_pod("a"))
    assert shown is not None
    replica.state.put(shown)
    replica.server.apply(make_pod("a", 40, uid=""))
    replica.write()
    assert cores(replica.admin) == []


def test_a_refusal_is_reported_and_the_creation_tried_again_later(replica: Replica) -> None:
    replica.server.deny("create .*resourceclaimtemplates")
    replica.server.apply(make_pod("a", uid=""), make_pod("b", uid=""))
    replica.read()
    for _ in range(2):
        replica.write()
    assert counted(replica.metrics, "refused") == 1
    assert [name for name, _ in events(replica.admin)] == ["a", "b"]
    assert all("the API server refuses it: " in text for _, text in events(replica.admin))
    assert {each["lastTimestamp"] for each in replica.admin.get(EVENTS)["items"]} == {
        "2026-01-01T00:00:00Z"
    }
    replica.server.restore()
    replica.now += 2
    replica.write()
    assert cores(replica.admin) == ["30"]


def test_a_template_with_another_spec_is_replaced(replica: Replica) -> None:
    foreign = make_template(make_pod("a"))
    request = foreign["spec"]["spec"]["devices"]["requests"][0]
    request["exactly"]["capacity"]["requests"]["cores"] = "100"
    replica.server.apply(foreign, make_pod("a", uid=""))
    for _ in range(2):
        replica.read()
        replica.write()
    assert cores(replica.admin) == ["30"]
    assert counted(replica.metrics, "replaced") == 1


def test_unused_templates_are_swept(replica: Replica) -> None:
    template = make_template(make_pod("a"))
    replica.server.apply(template)
    replica.read()
    replica.write()
    assert cores(replica.admin) == ["30"]
    replica.now = 60.0
    replica.server.fail(Fault(503), "delete .*")
    with pytest.raises(Unavailable):
        replica.write()
    replica.server.deny("delete .*")
    for _ in range(2):
        replica.write()
    assert counted(replica.metrics, "refused") == 1, "not at once again"
    replica.server.restore()
    replica.now += 2
    replica.write()
    assert cores(replica.admin) == []
    replica.now += 2
    replica.write()  # another replica was faster
    # The UID is a condition: a template of the same name that came since stays.
    replica.server.apply(template)
    replica.now += 2
    replica.write()
    assert cores(replica.admin) == ["30"]


def test_a_namespace_with_many_templates_or_events_delays_no_others(replica: Replica) -> None:
    pods = [make_pod(f"p{each}", each, namespace="broken-a", uid="") for each in range(1, 31)]
    waiting = [
        make_pod(f"w{each}", template=ELSEWHERE, namespace="broken-b", uid="") for each in range(30)
    ]
    replica.server.apply(
        *pods, *waiting, make_pod("a", uid=""), make_pod("z", template=ELSEWHERE, uid="")
    )
    replica.read()
    replica.write()
    assert cores(replica.admin) == ["30"]
    assert [name for name, _ in events(replica.admin)] == ["z"]
    assert replica.state.changed.is_set()  # the other ones' rest follows
    for _ in range(2):
        replica.write()
    for path in (TEMPLATES.replace("team", "broken-a"), EVENTS.replace("team", "broken-b")):
        assert len(replica.admin.get(path)["items"]) == 30
