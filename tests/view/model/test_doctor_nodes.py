"""The doctor's checks of agents, proxies, cards and allocations."""

import shlex
from dataclasses import replace
from datetime import timedelta

import pytest

from contract.cordon import describe_unknown
from contract.names import Names
from contract.other_systems import DriverDevices
from tests.view.model.doctor_facts import (
    AGENT,
    BOTH,
    HEALTHY_PROGRAMS,
    MINUTE,
    NOW,
    PROXY,
    Changes,
    agent,
    failing,
    findings,
    node,
    pod,
    problems,
    sample,
    with_agent,
    without,
)
from view.model.doctor.facts import (
    DaemonSet,
    Level,
    ProgramPod,
    ReportedAllocation,
    UnreadSource,
    UnrecordedContainer,
)
from view.model.usage import MetricSample


def next_agent(age: timedelta) -> Changes:
    """The agent of an update, beside the old one, on a node without HAMi-core."""
    why = "agent: ContainerCreating: hostPath type check failed: /usr/local/vgpu is not a directory"
    new = pod("agent", "next", ready=False, why=why, created=NOW - age)
    return {"programs": [*HEALTHY_PROGRAMS, new]}


def allocations(*cards: str, pod: str = "share", cores: int = 50, running: bool = True) -> Changes:
    """One container has these cards in its annotation."""
    held = frozenset(cards)
    found = ReportedAllocation("default", pod, "main", "n1", held, cores, running=running)
    return {"allocations": [found]}


NEXT = (
    "the next agent is not ready, the one before still runs: agent: ContainerCreating: hostPath "
    "type check failed: /usr/local/vgpu is not a directory"
)
OFFERED = "is offered too: one card may be allocated to two pods that do not share it"

PROBLEMS: dict[str, Changes] = {
    "agents error: DaemonSet gpu-turnstile-agent is missing": {
        "daemonsets": {"gpu-turnstile-proxy": DaemonSet(1, 1)}
    },
    "agents warning: its pod is on a node that does not exist": {
        "programs": [*without("none"), pod("agent", "b", "deleted", ready=False)]
    },
    "proxies unknown: its pod is ending, and no other one is there": {
        "programs": without("proxy"),
        "ending": [pod("proxy", "p", due=NOW + MINUTE / 2)],
    },
    "proxies error: its pod should have ended, and no other one is there": {
        "programs": without("proxy"),
        "ending": [pod("proxy", "p", due=NOW)],
    },
    "proxies error: not ready: Evicted": {
        "programs": without("proxy"),
        "ending": [pod("proxy", "p", ready=False, why="Evicted")],
    },
    "agents warning: pods on 2 nodes that the DaemonSet does not select": {
        "daemonsets": {**BOTH, "gpu-turnstile-agent": DaemonSet(1, 1, misplaced=3, updated=1)},
        "ending": [pod("agent", "b", due=NOW + MINUTE), pod("agent", "c", due=NOW)],
    },
    "agents error: no pod on 2 nodes that the DaemonSet selects": {
        "daemonsets": {**BOTH, "gpu-turnstile-agent": DaemonSet(3, 1, updated=1)}
    },
    "proxies error: not ready: ErrImagePull": {
        "programs": [*without("proxy"), pod("proxy", "p", ready=False, why="ErrImagePull")]
    },
    "proxies warning: pods on 1 node that the DaemonSet does not select": {
        "daemonsets": {**BOTH, "gpu-turnstile-proxy": DaemonSet(1, 1, misplaced=1)}
    },
    "kubelet error: the agent is not registered with the kubelet": with_agent(registered=0),
    "kubelet warning: PodResources List cannot be read: containers are identified by order": (
        with_agent(list_readable=0)
    ),
    "kubelet warning: the kubelet's checkpoint cannot be read: containers start unverified": (
        with_agent(checkpoint_readable=0)
    ),
    "kubelet error: its proxy reports all devices as unhealthy to the kubelet: no agent is running"
    "": {"proxies": {"n1": [MetricSample(f"{PROXY}given_up", {}, 1)]}},
    "kubelet unknown: its proxy: 503": {"proxies": {"n1": UnreadSource("503")}},
    "agent-disks error: --state-dir, /var/lib/gpu-turnstile, cannot be written: No space left on "
    "device: new GPU pods may be refused": with_agent(
        sample(
            "folder_writable",
            0,
            folder="state-dir",
            path="/var/lib/gpu-turnstile",
            reason="No space left on device",
        )
    ),
    "agent-disks warning: --plugin-dir, /run, cannot be written: Read-only file system: unhealthy "
    "cards and the current pod are not saved": with_agent(
        sample(
            "folder_writable", 0, folder="plugin-dir", path="/run", reason="Read-only file system"
        )
    ),
    "agent-requests error: the agent has no permission to list pods, get nodes": with_agent(
        *failing(list_pods="forbidden", get_nodes="forbidden")
    ),
    "agent-requests error: a policy or webhook denies that the agent may patch pods": with_agent(
        *failing(patch_pods="denied")
    ),
    "agent-requests error: the API server does not accept the agent's token: it cannot list pods": (
        with_agent(*failing(list_pods="unauthorized"))
    ),
    "agent-requests error: the agent does not reach the API server": with_agent(
        *failing(list_pods="unreachable", get_nodes="unreachable")
    ),
    "agent-requests unknown: its agent is of a version that does not report this": {
        "agents": {"n1": [each for each in agent() if "requests" not in each.name]}
    },
    f"other-plugins error: nvidia.com/gpu {OFFERED}": {"nodes": [node(nvidia=2)]},
    f"other-plugins error: nvidia.com/mig-1g.5gb {OFFERED}": {"nodes": [node(mig=True)]},
    f"other-plugins error: gpu.nvidia.com {OFFERED}": {
        "other_devices": {"n1": DriverDevices(2, 1), "n2": DriverDevices(8)}
    },
    "other-plugins unknown: ResourceSlices of gpu.nvidia.com: forbidden": {
        "other_devices": UnreadSource("forbidden")
    },
    "cards warning: a card is in MIG mode and is not offered": with_agent(
        sample("cards", state="mig")
    ),
    "cards warning: card GPU-9 was added later: it is offered after a restart of the agent": (
        with_agent(sample("card_awaits_restart", card="GPU-9", change="added"))
    ),
    "cards warning: card GPU-1 was edited in the cards file (memory, busId): that counts after a "
    "restart of the agent": with_agent(
        sample("card_awaits_restart", card="GPU-1", change="memory, busId")
    ),
    "cards error: the cards cannot be read: NVML: Driver Not Loaded": with_agent(
        sample("cards_problem", reason="NVML: Driver Not Loaded")
    ),
    "cards warning: the edited cards file cannot be used, the one before applies: cards: /c is not "
    "YAML": with_agent(sample("cards_file_problem", reason="cards: /c is not YAML")),
    "cards warning: the edited cards file cannot be used, the one before applies: not known": (
        with_agent(cards_file_problem=1)
    ),
    "cards error: gpu-cards: not JSON: Expecting value: line 1 column 1 (char 0)": {
        "nodes": [node(inventory="no")]
    },
    "cards error: gpu-cards.memoryBlock: Invalid value: 0: must be a whole number, 1 or more": {
        "nodes": [node(inventory='{"memoryBlock":0,"cards":[],"links":[]}')]
    },
    "cards warning: card 1: Xid 79": {"nodes": [node("n1", 100, 4, unhealthy=[1])]},
    "allocatable error: the agent has not written its inventory of cards": {
        "nodes": [node(inventory=None)]
    },
    "allocatable error: tencent.com/vcuda-core: the node's status offers 100, its cards have 200": {
        "nodes": [node(cores=100)]
    },
    "enforcement warning: HAMi-core is older than 2026-02-03: programs start 52 seconds late": (
        with_agent(hami_core_outdated=1)
    ),
    "enforcement error: no share starts: hami-library-dir: it is empty": with_agent(
        sample("hami_core_problem", reason="hami-library-dir: it is empty")
    ),
    "enforcement error: card GPU-0: the MPS daemon of GPU-0 does not serve: SIGKILL": with_agent(
        sample(
            "mps_problem", card="GPU-0", reason="the MPS daemon of GPU-0 does not serve: SIGKILL"
        )
    ),
    "enforcement warning: off: shares are not enforced": {
        "enforcement": "none",
        **with_agent(enforcement="none"),
    },
    "enforcement error: the agent's enforcement is none, its DaemonSet sets hami-core": with_agent(
        enforcement="none"
    ),
    "enforcement unknown: its agent is of a version that does not report this": {
        "agents": {"n1": [each for each in agent() if each.name != AGENT + "info"]}
    },
    f"agents-rollout error: {NEXT}": next_agent(timedelta(minutes=2)),
    f"agents-rollout unknown: {NEXT}": next_agent(timedelta(seconds=119)),
    "agents-rollout warning: the update of the agents is not complete: new on 1 of 2 nodes": {
        "daemonsets": {**BOTH, "gpu-turnstile-agent": DaemonSet(2, 2, updated=1)},
        "programs": [*HEALTHY_PROGRAMS, pod("agent", "b", "n2")],
        "nodes": [node(), node("n2")],
    },
    "allocations warning: allocations are not written to the pods yet": with_agent(
        patches_pending=2
    ),
    "allocations warning: pod default/share: container main holds a missing card (GPU-9) and "
    "cannot compute on it: delete the pod": allocations("GPU-9"),
    "allocations warning: pod default/late: container main holds missing cards (GPU-8, GPU-9) and "
    "cannot compute on it: delete the pod": allocations(
        "GPU-8", "GPU-9", "GPU-n1-0", pod="late", cores=300, running=False
    ),
    "allocations warning: node ghost does not exist, and still has 2 GPU pods: delete default/new, "
    "default/share": {
        "allocations": [
            ReportedAllocation("default", "share", "main", "ghost", frozenset({"GPU-9"}), 50),
            UnrecordedContainer("default/new", "main", "ghost", NOW - MINUTE),
        ],
        "bound": {"default/share": "ghost", "default/new": "ghost", "default/here": "n1"},
        "agents": {"n1": agent(), "ghost": UnreadSource("no route")},
    },
    "allocations error: pod default/share: container main holds other devices in the kubelet "
    "than in its annotation gpu-allocation": allocations("GPU-n1-1"),
    "allocations error: pod default/share: container main: it holds cards by a claim, and its node "
    "does not serve claims any more (label gpu-turnstile.io/mode=dra): deleted, it stays "
    "Terminating until the node has the label again": {
        "allocations": [
            ReportedAllocation(
                *("default", "share", "main", "n1", frozenset({"GPU-n1-0"}), 50), by_claim=True
            )
        ]
    },
    "allocations error: running without a recorded card: default/dark/main": {
        "allocations": [
            UnrecordedContainer("default/dark", "main", "n1", NOW - MINUTE),
            UnrecordedContainer("default/new", "main", "n1", NOW - timedelta(seconds=59)),
        ]
    },
}


DARK = UnrecordedContainer("default/dark", "main", "n1", NOW - timedelta(seconds=1))
LATE = UnrecordedContainer("default/dark", "main", "n1", NOW - MINUTE)
NEW_AGENT = [*without("agent"), pod("agent", "a", since=NOW - timedelta(seconds=14))]
STARTING = [*without("agent"), pod("agent", "a", ready=False, created=NOW - timedelta(seconds=4))]
NO_RECORD = "running without a recorded card: default/dark/main"


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        (
            {"allocations": [DARK], **with_agent(*failing(patch_pods="forbidden"))},
            "warning",
            f"{NO_RECORD}; the agent cannot patch pods (forbidden)",
        ),
        (
            {
                "allocations": [LATE],
                "programs": NEW_AGENT,
                **with_agent(*failing(list_pods="unauthorized")),
            },
            "error",
            f"{NO_RECORD}; the agent cannot list pods (unauthorized)",
        ),
        (
            {"allocations": [DARK], **with_agent(*failing(create_events="forbidden"))},
            "ok",
            "compared 0 containers: all match their annotation; 1 just started, not recorded yet",
        ),
        (
            {"allocations": [LATE], "programs": NEW_AGENT},
            "unknown",
            f"{NO_RECORD}; the agent has just started and may not have written it yet",
        ),
        *(
            (
                {**allocations("GPU-n1-1"), "programs": programs},
                "unknown",
                (
                    "pod default/share: container main holds other devices in the kubelet than in "
                    "its annotation gpu-allocation; the agent has just started"
                ),
            )
            for programs in (NEW_AGENT, STARTING)
        ),
    ],
)
def test_allocations_wait_for_an_agent_that_is_new_and_not_for_one_that_fails(
    changed: Changes, level: str, text: str
) -> None:
    found = findings("allocations", **changed)
    assert [(each.level.value, each.text) for each in found] == [(level, text)]


@pytest.mark.parametrize(
    ("reasons", "more", "page"),
    [
        ({}, "", "the-api-server-is-unreachable"),
        ({"create_events": "forbidden"}, "", "the-api-server-is-unreachable"),
        ({"patch_pods": "forbidden"}, "patch pods (forbidden)", "the-agent-lacks-a-permission"),
        ({"patch_pods": "denied"}, "patch pods (denied)", "the-agent-lacks-a-permission"),
        (
            {"patch_pods": "unreachable"},
            "patch pods (unreachable)",
            "the-api-server-is-unreachable",
        ),
    ],
)
def test_allocations_that_are_not_written_name_the_request_that_fails(
    reasons: dict[str, str], more: str, page: str
) -> None:
    samples = [*agent(patches_pending=2), *failing(**reasons)]
    (found,) = findings("allocations", agents={"n1": samples})
    text = "allocations are not written to the pods yet"
    more = f"; the agent cannot {more}: see the check agent-requests" if more else ""
    assert (found.text, found.run.rpartition("#")[2]) == (text + more, page)


def test_an_agent_that_has_just_started_is_not_registered_yet() -> None:
    (found,) = findings("kubelet", programs=NEW_AGENT, **with_agent(registered=0))
    text = "the agent is not registered with the kubelet; it has just started"
    assert (found.level.value, found.text) == ("unknown", text)


@pytest.mark.parametrize(("expected", "changed"), PROBLEMS.items(), ids=range(len(PROBLEMS)))
def test_each_problem_is_the_only_finding(expected: str, changed: Changes) -> None:
    assert problems(**changed) == [expected]


@pytest.mark.parametrize(
    ("reason", "run"),
    [
        ("No space left on device", "kubectl describe node n1  # docs/operate.md#"),
        ("Read-only file system", "kubectl -n gpu-turnstile-node delete pod --selector "),
    ],
)
def test_an_agent_is_restarted_where_its_folder_was_read_only(reason: str, run: str) -> None:
    labels = {"folder": "state-dir", "path": "/var/lib/gpu-turnstile", "reason": reason}
    (found,) = findings("agent-disks", **with_agent(sample("folder_writable", 0, **labels)))
    assert found.run.startswith(run)
    assert found.run.endswith("docs/operate.md#the-disk-is-full-or-read-only")


def test_the_doctor_of_a_node_that_does_not_exist_says_so() -> None:
    (found,) = (each for each in findings("", "ghost") if each.level is Level.ERROR)
    assert (found.check, found.text) == ("nodes", "node ghost does not exist")
    unread = findings("", "ghost", nodes=UnreadSource("you may not"))
    assert "does not exist" not in str(unread)


def test_a_missing_agent_is_not_reported_as_ok_too() -> None:
    found = findings("agents", daemonsets=BOTH | {"gpu-turnstile-agent": DaemonSet(3, 1)})
    assert Level.OK not in {each.level for each in found}


def test_without_selected_nodes_missing_agents_are_reported_once() -> None:
    text = "no node has a label that the DaemonSet selects"
    none = dict.fromkeys(BOTH, DaemonSet())
    assert problems(daemonsets=none, programs=without("agent", "proxy")) == [
        f"agents error: {text}",
        f"proxies error: {text}",
    ]


@pytest.mark.parametrize("agents", [{}, {"n1": UnreadSource("you may not")}])
def test_without_metrics_of_agents_allocations_are_not_compared(
    agents: dict[str, UnreadSource],
) -> None:
    (found,) = findings("allocations", agents=agents)
    assert (found.level, found.nodes) == (Level.UNKNOWN, ("n1",))
    assert found.text == "its agent's metrics cannot be read: allocations were not compared"


def test_without_metrics_agents_are_not_reported_as_registered() -> None:
    text = "kubelet unknown: the metrics of no agent were read"
    assert text in problems(agents={}, proxies={})


@pytest.mark.parametrize(("age", "level"), [(59, "unknown"), (60, "error")])
@pytest.mark.parametrize("replaced", ["agent", "proxy"])
def test_a_node_status_may_be_old_while_agent_or_proxy_are_new(
    replaced: str, age: int, level: str
) -> None:
    ages = {"agent": 3600, "proxy": 3600, replaced: age}
    programs = [
        *without("agent", "proxy"),
        *(pod(name, name, since=NOW - timedelta(seconds=each)) for name, each in ages.items()),
    ]
    text = "tencent.com/vcuda-core: the node's status offers 100, its cards have 200"
    if level == "unknown":
        text += "; agent or proxy have just started, the kubelet may not have updated it yet"
    assert problems(nodes=[node(cores=100)], programs=programs) == [f"allocatable {level}: {text}"]


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({"proxy_starts": {"n1": NOW - timedelta(seconds=59)}}, "unknown"),
        ({"proxy_starts": {"n1": NOW - MINUTE, "n2": NOW}}, "error"),
        ({"ending": [pod("proxy", "old", due=NOW + MINUTE)]}, "unknown"),
        ({"ending": [pod("agent", "old", due=NOW + MINUTE)]}, "error"),
        ({"programs": [*without("proxy"), pod("proxy", "new", created=NOW)]}, "unknown"),
    ],
)
def test_an_agent_registers_again_once_its_proxy_has_ended(changed: Changes, level: str) -> None:
    text = "the agent is not registered with the kubelet"
    if level == "unknown":
        text += ": its proxy has just ended, and the agent registers again within seconds"
    assert problems(**with_agent(registered=0), **changed) == [f"kubelet {level}: {text}"]


def test_the_enforcement_of_an_agent_without_a_response_is_unknown() -> None:
    agents = {"n1": agent(), "n2": UnreadSource("no route")}
    found = findings("enforcement", agents=agents, nodes=[node(), node("n2")])
    assert [(each.level, each.nodes) for each in found] == [(Level.UNKNOWN, ("n2",))]


def test_a_cordoned_card_is_no_problem() -> None:
    nodes = [node("n1", 100, 4, cordoned="GPU-n1-1")]
    assert problems(nodes=nodes) == []
    (found,) = findings("cards", nodes=nodes)
    assert found.text == "2 cards, all healthy; 1 cordoned"


@pytest.mark.parametrize(
    ("cores", "cordoned", "read", "ages", "more"),
    [
        (200, "GPU-n1-1", 0, {}, "; the agent has not read the cordon of its cards yet"),
        (100, "", 1, {}, "; the agent has not read the cordon of its cards yet"),
        (200, "GPU-n1-1", 1, {"cordon": 59}, "; cards were cordoned or uncordoned 59 s"),
        (100, "", 0, {"cordon": 0}, "; cards were cordoned or uncordoned 0 s ago"),
        (100, "", 0, {"health": 9}, "; the health of cards has changed 9 s ago"),
        (200, "GPU-n1-1", 1, {"cordon": 60}, ", as if none were cordoned"),
        (100, "", 0, {"cordon": 60, "health": float("nan")}, ""),
    ],
)
def test_the_nodes_status_follows_a_cordon_late(
    cores: int, cordoned: str, read: int, ages: dict[str, float], more: str
) -> None:
    samples = [sample("card_cordoned", read, card="GPU-n1-1", index="1", model="Test")]
    samples += [sample("offer_age_seconds", each, cause=cause) for cause, each in ages.items()]
    changed = with_agent(*samples) | {"nodes": [node("n1", cores, cores // 25, cordoned=cordoned)]}
    found = findings("allocatable", **changed)
    assert [each.level.value for each in found] == ["unknown" if more[:1] == ";" else "error"] * 2
    has = 100 if cordoned else 200
    text = f"tencent.com/vcuda-core: the node's status offers {cores}, its cards have {has}{more}"
    assert found[0].text.startswith(text)
    assert more or found[0].text == text


def test_an_entry_of_a_cordon_that_names_no_card_is_reported() -> None:
    nodes = [node("n1", 100, 4, cordoned="gpu-N1-1,GPU-n1-O")]
    text = describe_unknown(["GPU-n1-O"], Names())
    assert problems(nodes=nodes) == [f"cards warning: {text}"]


WHOLE = "kubectl annotate node n1 tencent.com/gpu-cordoned-  # ends the cordons of all its cards"


@pytest.mark.parametrize(
    ("entries", "run"),
    [
        ("A;B", "kubectl gpu uncordon n1 'A;B'"),
        ("all,GPU-n1-O", "kubectl gpu uncordon n1 all GPU-n1-O"),
        ("*,it's", "kubectl gpu uncordon n1 '*' 'it'\"'\"'s'"),
        ("-o=json", "kubectl gpu uncordon n1 -- -o=json"),
        ('["GPU-n1-1"]', "kubectl gpu uncordon n1 '[\"GPU-n1-1\"]'"),
        ("$(id)", "kubectl gpu uncordon n1 '$(id)'"),
        ("a{}", WHOLE),
        ("a\u202e", WHOLE),
        ("x" * 121, WHOLE),
        (",".join(map(str, range(9))), WHOLE),
    ],
)
def test_an_entry_that_names_no_card_comes_with_the_command_that_removes_it(
    entries: str, run: str
) -> None:
    (found,) = findings("cards", nodes=[node("n1", cordoned=entries)])
    assert found.run == f"{run}  # docs/operate.md#one-card-gets-no-new-containers"
    if run != WHOLE:  # the shell gives each entry to the command as it is written
        words = shlex.split(run)[4:]
        assert [each for each in words if each != "--"] == entries.split(",")


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        # By the alphabet 0.9.0 comes last; 0.10.0 is what the cluster runs.
        (["a:0.10.0", "a:0.10.0", "a:0.9.0"], {("n2",): "runs a:0.9.0; others run a:0.10.0"}),
        (
            ["a:2", "a:1", "a:2", "a:1"],
            {("n0", "n1", "n2", "n3"): "different images: a:1 (2 nodes); a:2 (2 nodes)"},
        ),
        (["a:1", "a:1"], {}),
    ],
)
def test_the_most_frequent_image_is_the_expected_one(
    images: list[str], expected: dict[tuple[str, ...], str]
) -> None:
    programs = without("agent", "proxy")
    for at, image in enumerate(images):
        programs += [pod("agent", f"a{at}", f"n{at}", image=image), pod("proxy", "p", f"n{at}")]
    nodes = [node(f"n{at}") for at in range(len(images))]
    found = findings("agents", nodes=nodes, programs=programs)
    assert {each.nodes: each.text for each in found if each.level is Level.WARNING} == expected


def on_nodes(*names: str) -> Changes:
    """All nodes have agents, and these have no inventory."""
    programs: list[ProgramPod] = [pod("agent", f"a-{name}", name) for name in ("n1", *names)]
    return {"nodes": [node(name, inventory=None) for name in names], "programs": programs}


def test_nodes_with_the_same_problem_are_one_finding() -> None:
    (found,) = findings("allocatable", **on_nodes("n3", "n1", "n2"))
    assert found.nodes == ("n1", "n2", "n3")
    assert "spec.nodeName=n1" in found.run


def test_a_cdi_spec_of_the_host_that_does_not_fit_its_cards_is_reported() -> None:
    reason = "/etc/cdi/nvidia.yaml: no device for card 1 (GPU-n1-1)"
    info = sample("info", version="0.3.0", enforcement="hami-core", inject="cdi")
    (found,) = findings("cdi", **with_agent(info, sample("cdi_specs_unused", reason=reason)))
    text = "containers get no driver files (libcuda), the host's CDI specs are not used"
    assert (found.level, found.text) == (Level.WARNING, f"{text}: {reason}")
    (found,) = findings("cdi", **with_agent(info, sample("cdi_specs_unused", 0, reason="")))
    assert found.level is Level.OK


def test_one_node_has_only_its_own_and_cluster_findings() -> None:
    changed = on_nodes("n2")
    assert [each.level for each in findings("allocatable", "n2", **changed)] == ["error"]
    assert findings("allocatable", "n1", **changed) == []


def test_without_an_inventory_no_card_is_called_healthy() -> None:
    assert findings("cards", nodes=[node(inventory=None)]) == []


BY_NAME = with_agent(sample("info", version="0.3.0", enforcement="hami-core", inject="cdi"))


@pytest.mark.parametrize(
    ("runtime", "level", "text"),
    [
        ("containerd://2.3.4", "ok", "1 node: no runtime is too old"),
        ("cri-o://1.36.2", "ok", "1 node: no runtime is too old"),
        ("", "unknown", "whether the container runtime reads CDI specs: no version"),
        (
            "docker://27.5.1",
            "unknown",
            "whether the container runtime reads CDI specs: docker://27.5.1",
        ),
        (
            "containerd://1.6.20",
            "error",
            "GPU pods are refused, because containerd 1.6.20 reads no CDI specs, 1.7 and newer do",
        ),
    ],
)
@pytest.mark.parametrize("by_claims", [False, True])
def test_a_container_runtime_must_read_cdi_specs_where_cards_come_by_them(
    runtime: str, level: str, text: str, by_claims: bool
) -> None:
    made = replace(node(), runtime=runtime)
    assert findings("cdi", nodes=[made]) == []
    if by_claims:
        made = replace(made, labels={"gpu-turnstile.io/mode": "dra"})
    changed = {"nodes": [made], **({} if by_claims else BY_NAME)}
    (found,) = findings("cdi", **changed)
    assert (found.level.value, found.text) == (level, text)
    if level != "ok":
        assert found.nodes == ("n1",)
        assert found.run == "kubectl get nodes n1 --output wide  # docs/distributions.md#cdi"
