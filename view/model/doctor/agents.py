"""Checks of what agents report about themselves and their disks, and of their rollout."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

from contract.text import format_count
from view.model.doctor.facts import (
    AGENT,
    Facts,
    Finding,
    Level,
    NotReadError,
    Samples,
    read_samples,
    require,
    value,
    warning,
)
from view.model.doctor.nodes import (
    AGENT_LOGS,
    PODS_ON_NODE,
    RESTART,
    FindingsByText,
    find_daemonset,
    samples_with,
)

_FAILING, _INFO = "gpu_turnstile_agent_requests_failing", "gpu_turnstile_agent_info"
_MPS_PROBLEM, _MPS_CLIENTS = (
    f"gpu_turnstile_agent_{each}" for each in ("mps_problem", "container_mps_clients")
)
_MPS_PODS = (
    "kubectl -n gpu-turnstile-node logs --selector app.kubernetes.io/name=gpu-turnstile-mps"
    "  # docs/operate.md#a-daemon-of-mps-does-not-serve"
)
_PAGE = f"{AGENT_LOGS}  # docs/operate.md#the-agent-lacks-a-permission"
_UNREACHABLE = f"{PODS_ON_NODE}  # docs/operate.md#the-api-server-is-unreachable"
_WRITABLE = "gpu_turnstile_agent_folder_writable"
_HAMI_CORE = "docs/options.md#what-hami-core-needs-on-a-node"
_SILENT = "its agent is of a version that does not report this"
_CHOICE = "docs/install.md#2-choose-scheduler-device-injection-and-enforcement"
_DAEMONSET = "kubectl -n gpu-turnstile-node describe daemonset gpu-turnstile-agent"
_PODS_OF_NODE = (
    "kubectl -n gpu-turnstile-node describe pods --selector "
    "app.kubernetes.io/name=gpu-turnstile-agent"
)
_DISK_FULL = "kubectl describe node {}  # docs/operate.md#the-disk-is-full-or-read-only"
_READ_ONLY = "Read-only file system"
_REMOUNTED = f"{RESTART}  # once it is writable: docs/operate.md#the-disk-is-full-or-read-only"
"""An agent that started while the file system was read-only keeps its own mount of it."""

_FOLDERS = {
    "state-dir": (Level.ERROR, "new GPU pods may be refused"),
    "plugin-dir": (Level.WARNING, "unhealthy cards and the current pod are not saved"),
}
"""What a folder that cannot be written means, by its flag."""

_STARTED_AFTER = timedelta(minutes=2)
"""An agent is ready some seconds after its start; pulling its image takes longer."""


def check_requests(facts: Facts) -> Iterator[Finding]:
    """Check that the agents' requests to the API server succeed."""
    read = _read(facts)
    texts = {
        "forbidden": ("the agent has no permission to {}", facts.install),
        "denied": ("a policy or webhook denies that the agent may {}", _PAGE),
        "unauthorized": (
            "the API server does not accept the agent's token: it cannot {}",
            RESTART,
        ),
        "unreachable": ("the agent does not reach the API server", _UNREACHABLE),
    }
    found, silent = FindingsByText(), []
    for node, samples in sorted(read.items()):
        reports = [each for each in samples if each.name == _FAILING]
        if not reports:
            silent.append(node)
        failing: dict[str, list[str]] = defaultdict(list)
        for each in reports:
            if each.value:
                request = f"{each.labels.get('verb')} {each.labels.get('resource')}"
                failing[each.labels.get("reason", "")].append(request)
        for reason, (text, run) in texts.items():
            if reason in failing:
                found.add(Level.ERROR, node, text.format(", ".join(failing[reason])), run)
    found.add(Level.UNKNOWN, silent, _SILENT)
    yield from found.findings("no request of an agent to the API server fails")


def check_enforcement(facts: Facts) -> Iterator[Finding]:
    """Compare what agents enforce with their DaemonSet, and report what does not enforce it."""
    wanted, found, read = require(facts.enforcement), FindingsByText(), _read(facts)
    clients = dict[tuple[str, ...], float]()
    found.add(Level.UNKNOWN, facts.agents.keys() - read, "its agent's metrics cannot be read")
    for node, samples in sorted(read.items()):
        reports = [each.labels.get("enforcement", "") for each in samples if each.name == _INFO]
        if not reports:
            found.add(Level.UNKNOWN, node, _SILENT)
        for actual in reports:
            if actual != wanted:
                text = f"the agent's enforcement is {actual}, its DaemonSet sets {wanted}"
                found.add(Level.ERROR, node, text, _DAEMONSET)
            elif actual == "none":
                found.add(Level.WARNING, node, "off: shares are not enforced", _CHOICE)
        for _, labels in samples_with({node: samples}, "gpu_turnstile_agent_hami_core_problem"):
            text = f"no share starts: {labels['reason']}"
            found.add(Level.ERROR, node, text, _HAMI_CORE)
        if value(samples, "gpu_turnstile_agent_hami_core_outdated"):
            text = "HAMi-core is older than 2026-02-03: programs start 52 seconds late"
            found.add(Level.WARNING, node, text, _HAMI_CORE)
        for each in samples:
            labels = each.labels
            if each.name == _MPS_PROBLEM and each.value:
                text = f"card {labels.get('card')}: {labels.get('reason')}"
                found.add(Level.ERROR, node, text, _MPS_PODS)
            elif each.name == _MPS_CLIENTS:
                key = (node, *(labels.get(one, "") for one in ("namespace", "pod", "container")))
                clients[key] = max(clients.get(key, 0), each.value)
    fine = wanted
    if clients:
        connected = format_count(int(sum(clients.values())), "client")
        fine = f"{wanted}: {connected} in {format_count(len(clients), 'container')} with shares"
    yield from found.findings(fine)


def check_disks(facts: Facts) -> Iterator[Finding]:
    """Report folders that agents cannot write to; agents without this metric are passed over."""
    found, fine = FindingsByText(), ""
    for folder, (level, effect) in _FOLDERS.items():
        if any(labels["folder"] == folder for _, labels in samples_with(facts.agents, _WRITABLE)):
            fine = "the folders that agents write to have space"
        for node, labels in samples_with(facts.agents, _WRITABLE, 0):
            if labels["folder"] == folder:
                text = f"--{folder}, {labels['path']}, cannot be written: {labels['reason']}"
                read_only = labels["reason"] == _READ_ONLY
                run = _REMOUNTED if read_only else _DISK_FULL
                found.add(level, node, f"{text}: {effect}", run)
    yield from found.findings(fine)


def check_rollout(facts: Facts) -> Iterator[Finding]:
    """Check that an update of the agents makes progress.

    A node's next agent starts beside the old one, which stays ready if the next one cannot start.
    """
    daemonset, pods = find_daemonset(facts, AGENT), require(facts.programs)
    agents = [each for each in pods if each.component == AGENT and each.node]
    served = {each.node for each in agents if each.ready}
    if daemonset is None:
        return  # the check of agents reports it
    found = FindingsByText()
    for each in agents:
        if each.ready or each.node not in served:
            continue
        age = facts.now - each.created if each.created else _STARTED_AFTER
        text = f"the next agent is not ready, the one before still runs: {each.why}"
        late = age >= _STARTED_AFTER
        found.add(Level.ERROR if late else Level.UNKNOWN, each.node, text, _PODS_OF_NODE)
    count = f"{daemonset.updated} of {format_count(daemonset.there, 'node')}"
    if daemonset.updated < daemonset.there:
        text = f"the update of the agents is not complete: new on {count}"
        yield warning(text, _DAEMONSET)
        yield from found.findings("")
    else:
        yield from found.findings(f"all up to date: {count}")


def _read(facts: Facts) -> dict[str, Samples]:
    """Return the metrics of agents, by node.

    Raises:
        NotReadError: none could be read.
    """
    found = read_samples(facts.agents)
    if not found:
        require(facts.programs)
        raise NotReadError("the metrics of no agent were read")
    return found
