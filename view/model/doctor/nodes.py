"""Checks of GPU nodes: agents, proxies, cards, allocatable amounts, allocations."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import timedelta

from contract.inventory import NOTHING
from contract.names import Names
from contract.other_systems import NVIDIA, NVIDIA_DRIVER, DriverDevices
from contract.runtimes import cdi_problem, may_read_cdi
from contract.text import format_count
from placement.cluster.nodes import Problem
from view.model.claims import UNSERVED
from view.model.doctor.facts import (
    AGENT,
    PROXY,
    DaemonSet,
    Facts,
    Finding,
    Level,
    OrUnread,
    ProgramPod,
    ReportedAllocation,
    Samples,
    UnreadSource,
    UnrecordedContainer,
    error,
    ok,
    read_samples,
    require,
    unknown,
    value,
    warning,
)
from view.model.node_facts import NodeFacts
from view.model.words import (
    clamp,
    missing_node,
    name_lost_cards,
    name_some,
    summarize,
    uncordon_command,
)

_AGENT, _PROXY = "gpu_turnstile_agent_", "gpu_turnstile_proxy_"
PODS_ON_NODE = (
    "kubectl -n gpu-turnstile-node get pods --output wide --field-selector spec.nodeName={}"
)
AGENT_LOGS = (
    "kubectl -n gpu-turnstile-node logs --selector app.kubernetes.io/name=gpu-turnstile-agent "
    "--prefix --tail 50"
)
_AGAIN = "kubectl gpu doctor --node {}"
RESTART = (
    "kubectl -n gpu-turnstile-node delete pod --selector "
    "app.kubernetes.io/name=gpu-turnstile-agent --field-selector spec.nodeName={}"
)
_COUNTED = f"{RESTART}  # cordon the node first: docs/operate.md#a-card-is-unhealthy"
_CARDS_FILE = "kubectl describe node {}  # docs/operate.md#the-cards-file-is-not-used"
_LACKS = f"{AGENT_LOGS}  # docs/operate.md#the-agent-lacks-a-permission"
_RECORDED_AFTER = timedelta(minutes=1)
_STATUS_UPDATED_AFTER = timedelta(minutes=1)
_FORGOTTEN_AFTER = timedelta(minutes=6)
"""A kubelet forgets a device plugin five minutes after the plugin's end."""

_UNBOUND = "kubectl -n gpu-turnstile-node get events --field-selector reason=FailedScheduling"
_DAEMONSET = "kubectl -n gpu-turnstile-node describe daemonset {}"
_PODS_OF = "kubectl get pods --all-namespaces --field-selector spec.nodeName={}"
_ALL_PODS = f"{_PODS_OF}  # docs/gpu-operator.md"
_RUNTIME = "kubectl get nodes {} --output wide  # docs/distributions.md#cdi"
_HOST_SPECS = "sudo nvidia-ctk cdi list  # on {}: docs/distributions.md#the-hosts-cdi-spec"
_UNHEALTHY = "kubectl gpu nodes {}  # docs/operate.md#a-card-is-unhealthy"
_CORDON = "  # docs/operate.md#one-card-gets-no-new-containers"
_NOTHING_OFFERED = f"{PODS_ON_NODE}  # docs/operate.md#the-node-offers-nothing"
_NOT_KNOWN = (Problem.NO_INVENTORY, Problem.UNREADABLE)
"""With one of these problems the cards of a node are unknown."""


class FindingsByText:
    """Findings about nodes; equal findings about several nodes are merged."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Level, str, str], set[str]] = defaultdict(set)

    def add(self, level: Level, nodes: str | Iterable[str], text: str, run: str = "") -> None:
        """Add a finding about one or more nodes; ``{}`` in *run* becomes the first node."""
        names = [nodes] if isinstance(nodes, str) else [*nodes]
        if names:
            self._nodes[level, text, run].update(names)

    def findings(self, fine: str) -> Iterator[Finding]:
        """Yield all findings; if there are none, one with the text *fine*, unless it is empty."""
        for (level, text, run), nodes in self._nodes.items():
            names = tuple(sorted(nodes))
            yield Finding("", level, text, run.replace("{}", names[0]), names)
        if fine and not self._nodes:
            yield ok(fine)


def _nodes_with(
    replicas: Mapping[str, OrUnread[Samples]], name: str, *, zero: bool = False, **labels: str
) -> Iterator[str]:
    """Yield the nodes on which a metric was read and is not zero, or is *zero*."""
    for node, samples in read_samples(replicas).items():
        found = value(samples, name, **labels)
        if found is not None and (found == 0) is zero:
            yield node


def samples_with(
    replicas: Mapping[str, OrUnread[Samples]], name: str, wanted: float = 1.0
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the node and the labels of each sample of a metric with this value.

    A label that an older agent does not have is ``not known``.
    """
    for node, samples in read_samples(replicas).items():
        for each in samples:
            if each.name == name and each.value == wanted:
                labels = {label: clamp(text) for label, text in each.labels.items()}
                yield node, defaultdict(lambda: "not known", labels)


def find_daemonset(facts: Facts, component: str) -> DaemonSet | None:
    """Return the counts of a program's DaemonSet, with those of its one for nodes with claims.

    Raises:
        NotReadError: they could not be read.
    """
    daemonsets = require(facts.daemonsets)
    plain, claims = daemonsets.get(component), daemonsets.get(f"{component}-dra")
    if plain is None or claims is None:
        return plain
    return DaemonSet(*map(sum, zip(astuple(plain), astuple(claims), strict=True)))


def check_programs(facts: Facts, component: str) -> Iterator[Finding]:
    """Check that every node that a DaemonSet selects has a ready pod of it, and no other node."""
    pods = [each for each in require(facts.programs) if each.component == component]
    daemonset = find_daemonset(facts, component)
    if daemonset is None:
        yield error(f"DaemonSet {component} is missing", facts.install)
        return
    if not daemonset.wanted:
        text = "no node has a label that the DaemonSet selects"
        yield error(text, "kubectl label node NODE gpu-turnstile.io/gpus=true")
        return
    ready = {each.node for each in pods if each.ready}
    found, counted = FindingsByText(), list[Finding]()
    if daemonset.there < daemonset.wanted:
        absent = format_count(daemonset.wanted - daemonset.there, "node")
        text = f"no pod on {absent} that the DaemonSet selects"
        counted.append(error(text, _DAEMONSET.format(component)))
    ending = [each for each in require(facts.ending) if each.component == component]
    missing = facts.find_missing(each.node for each in (*pods, *ending))
    leaving = {each.node for each in ending if each.due and facts.now < each.due}
    if daemonset.misplaced > len(leaving):
        misplaced = format_count(daemonset.misplaced - len(leaving), "node")
        text = f"pods on {misplaced} that the DaemonSet does not select"
        counted.append(warning(text, _DAEMONSET.format(component)))
    there = {each.node for each in pods}
    last = [each for each in ending if each.node and each.node not in there]
    for each in (*pods, *last):
        if each.node in missing:
            found.add(
                Level.WARNING, each.node, "its pod is on a node that does not exist", PODS_ON_NODE
            )
        elif each.due:
            if len(last) > daemonset.misplaced:  # else their nodes are no longer selected
                late = facts.now >= each.due
                text = "its pod should have ended" if late else "its pod is ending"
                level = Level.ERROR if late else Level.UNKNOWN
                found.add(level, each.node, f"{text}, and no other one is there", PODS_ON_NODE)
        elif each.node and each.node not in ready:
            text = f"not ready: {each.why or 'no reason given'}"
            if each.starting and facts.now - each.starting < _STATUS_UPDATED_AFTER:
                found.add(Level.UNKNOWN, each.node, f"{text}; it has just started", _AGAIN)
            else:
                found.add(Level.ERROR, each.node, text, PODS_ON_NODE if each.bound else _UNBOUND)
    _compare_images(pods, found)
    yield from counted
    fine = f"ready on {len(ready)} of {daemonset.wanted} selected nodes"
    yield from found.findings("" if counted else fine)


def _compare_images(pods: Sequence[ProgramPod], found: FindingsByText) -> None:
    """Report pods with another image than most; all pods if no image is the most common."""
    ranked = Counter(each.image for each in pods).most_common()
    if len(ranked) < 2:
        return
    (common, most), (_, next_most), *_ = ranked
    for each in pods:
        if most == next_most:
            text = f"different images: {summarize(each.image for each in pods)}"
            found.add(Level.WARNING, each.node, text)
        elif each.image != common:
            found.add(Level.WARNING, each.node, f"runs {each.image}; others run {common}")


def check_agents(facts: Facts) -> Iterator[Finding]:
    """Check that agents are registered with the kubelet and can read ``List`` and checkpoint."""
    if not facts.agents and not facts.proxies:
        require(facts.programs)
        yield unknown("the metrics of no agent were read")
        return
    found = FindingsByText()
    for prefix, replicas in (("", facts.agents), ("its proxy: ", facts.proxies)):
        for node, samples in sorted(replicas.items()):
            if isinstance(samples, UnreadSource):
                found.add(Level.UNKNOWN, node, f"{prefix}{samples.why}")
    for node in _nodes_with(facts.agents, f"{_AGENT}registered", zero=True):
        text = "the agent is not registered with the kubelet"
        if _proxy_was_replaced(facts, node):
            text += ": its proxy has just ended, and the agent registers again within seconds"
            found.add(Level.UNKNOWN, node, text, _AGAIN)
        elif just_started(facts, programs_on(facts, node, AGENT)):
            found.add(Level.UNKNOWN, node, f"{text}; it has just started", _AGAIN)
        else:
            found.add(Level.ERROR, node, text, PODS_ON_NODE)
    unreadable = _nodes_with(facts.agents, f"{_AGENT}list_readable", zero=True)
    text = "PodResources List cannot be read: containers are identified by order"
    run = f"{AGENT_LOGS}  # docs/operate.md#list-cannot-be-read"
    found.add(Level.WARNING, unreadable, text, run)
    unreadable = _nodes_with(facts.agents, f"{_AGENT}checkpoint_readable", zero=True)
    text = "the kubelet's checkpoint cannot be read: containers start unverified"
    run = f"{AGENT_LOGS}  # docs/operate.md#the-kubelets-checkpoint-cannot-be-read"
    found.add(Level.WARNING, unreadable, text, run)
    text = "its proxy reports all devices as unhealthy to the kubelet: no agent is running"
    found.add(Level.ERROR, _nodes_with(facts.proxies, f"{_PROXY}given_up"), text, PODS_ON_NODE)
    yield from found.findings("agents are registered; List and checkpoint can be read")


def check_cdi(facts: Facts) -> Iterator[Finding]:
    """Check that container runtimes read CDI specs, and that the host's own fit its cards."""
    if isinstance(facts.nodes, UnreadSource):
        return  # the check of other plugins reports it
    found = FindingsByText()
    by_name = set(_nodes_with(facts.agents, f"{_AGENT}info", inject="cdi"))
    need = [each for each in facts.nodes if each.serves_claims or each.node.name in by_name]
    for each in need:
        if problem := cdi_problem(each.runtime):
            text = f"GPU pods are refused, because {problem}"
            found.add(Level.ERROR, each.node.name, text, _RUNTIME)
        elif not may_read_cdi(each.runtime):
            text = f"whether the container runtime reads CDI specs: {each.runtime or 'no version'}"
            found.add(Level.UNKNOWN, each.node.name, text, _RUNTIME)
    for name, labels in samples_with(facts.agents, f"{_AGENT}cdi_specs_unused"):
        text = "containers get no driver files (libcuda), the host's CDI specs are not used"
        found.add(Level.WARNING, name, f"{text}: {labels['reason']}", _HOST_SPECS)
    if need:
        yield from found.findings(f"{format_count(len(need), 'node')}: no runtime is too old")


def check_other_plugins(facts: Facts) -> Iterator[Finding]:
    """Find nodes on which NVIDIA's device plugin or DRA driver serves the same cards."""
    names, found = Names(facts.domain), FindingsByText()
    read = facts.other_devices
    devices = {} if isinstance(read, UnreadSource) else read
    for node in require(facts.nodes):
        if not node.offered.get(names.core) and not programs_on(facts, node.node.name, AGENT):
            continue
        mig = any(card.is_instance for card in node.node.cards)
        own = devices.get(node.node.name, DriverDevices())
        for name in sorted({*node.others, *own.offered(mig=mig)}):
            text = (
                f"{name} is offered too: one card may be allocated to two pods that do not share it"
            )
            found.add(Level.ERROR, node.node.name, text, _ALL_PODS)
    fine = f"no GPU node offers {NVIDIA[0]} or {NVIDIA_DRIVER} as well"
    yield from found.findings("" if isinstance(read, UnreadSource) else fine)
    if isinstance(read, UnreadSource):
        yield unknown(f"ResourceSlices of {NVIDIA_DRIVER}: {read.why}")


def programs_on(facts: Facts, node: str, *components: str) -> list[ProgramPod]:
    """Return the pods of some of our programs on a node; none if they could not be read."""
    programs = () if isinstance(facts.programs, UnreadSource) else facts.programs
    return [each for each in programs if each.node == node and each.component in components]


def just_started(facts: Facts, programs: Iterable[ProgramPod]) -> bool:
    """Return whether one of these pods is ready for less than a minute, or new and not ready."""
    starts = (
        each.since or (None if each.ready else each.starting or each.created) for each in programs
    )
    return any(each and facts.now - each < _STATUS_UPDATED_AFTER for each in starts)


def _proxy_was_replaced(facts: Facts, node: str) -> bool:
    """Return whether a proxy of this node ends, or one has begun less than a minute ago."""
    ending = () if isinstance(facts.ending, UnreadSource) else facts.ending
    if any((each.component, each.node) == (PROXY, node) and each.due for each in ending):
        return True
    starts = {} if isinstance(facts.proxy_starts, UnreadSource) else facts.proxy_starts
    begun = [starts.get(node), *(each.created for each in programs_on(facts, node, PROXY))]
    return any(each is not None and facts.now - each < _STATUS_UPDATED_AFTER for each in begun)


def check_cards(facts: Facts) -> Iterator[Finding]:
    """Report cards that are unhealthy, in MIG mode or not offered, and unreadable inventories."""
    found, count, names = FindingsByText(), 0, Names(facts.domain)
    for node in require(facts.nodes):
        name = node.node.name
        if node.unreadable:
            found.add(Level.ERROR, name, node.unreadable, "kubectl describe node {}")
        if node.cordon_problem:
            run = uncordon_command(name, node.node.unknown_cordons, names.gpu_cordoned)
            found.add(Level.WARNING, name, node.cordon_problem, f"{run}{_CORDON}")
        for card in node.node.cards:
            count += 1
            if card.unhealthy:
                found.add(Level.WARNING, name, f"card {card.index}: {card.unhealthy}", _UNHEALTHY)
    texts = {
        "mig": "a card is in MIG mode and is not offered",
        "faulty": "a card could not be read by the agent",
    }
    for state, text in texts.items():
        nodes = _nodes_with(facts.agents, f"{_AGENT}cards", state=state)
        found.add(Level.WARNING, nodes, text, "kubectl describe node {}")
    for name, labels in samples_with(facts.agents, f"{_AGENT}card_awaits_restart"):
        text = f"card {labels['card']} was added later: it is offered"
        if labels["change"] != "added":
            fields = labels["change"]
            text = f"card {labels['card']} was edited in the cards file ({fields}): that counts"
        found.add(Level.WARNING, name, f"{text} after a restart of the agent", _COUNTED)
    for name, labels in samples_with(facts.agents, f"{_AGENT}cards_problem"):
        text = f"the cards cannot be read: {labels['reason']}"
        found.add(Level.ERROR, name, text, _NOTHING_OFFERED)
    for name, labels in samples_with(facts.agents, f"{_AGENT}cards_file_problem"):
        text = f"the edited cards file cannot be used, the one before applies: {labels['reason']}"
        found.add(Level.WARNING, name, text, _CARDS_FILE)
    cordoned = sum(card.cordoned for node in require(facts.nodes) for card in node.node.cards)
    text = f"{count} cards, all healthy"
    fine = f"{text}; {cordoned} cordoned" if cordoned else text
    yield from found.findings(fine if count else "")


def check_allocatable(facts: Facts) -> Iterator[Finding]:
    """Compare the allocatable amounts of each node with its available cards."""
    found, names = FindingsByText(), Names(facts.domain)
    unwritten = frozenset(_nodes_with(facts.agents, f"{_AGENT}counts_problem"))
    for name in unwritten:
        level, text = _find_unwritten(facts, name)
        found.add(level, name, text, _NOTHING_OFFERED)
    for node in require(facts.nodes):
        name, problem = node.node.name, node.node.problem
        programs = programs_on(facts, name, AGENT, PROXY)
        if problem is Problem.NO_INVENTORY and any(each.component == AGENT for each in programs):
            text = "the agent has not written its inventory of cards"
            found.add(Level.ERROR, name, text, PODS_ON_NODE)
        if problem in _NOT_KNOWN or name in unwritten:
            continue
        pairs = zip(node.node.cards, node.node.sizes, strict=True)
        usable = [size for card, size in pairs if not card.withheld]
        sums = map(sum, zip(NOTHING, *usable, strict=True))
        cordoned_sizes = [
            size
            for card, size in zip(node.node.cards, node.node.sizes, strict=True)
            if card.cordoned and not card.unhealthy
        ]
        for at, (resource, expected) in enumerate(
            zip((names.core, names.memory), sums, strict=True)
        ):
            offered = node.offered.get(resource, 0)
            if offered == expected:
                continue
            text = f"{resource}: the node's status offers {offered}, its cards have {expected}"
            if late := _why_late(facts, node):
                found.add(Level.UNKNOWN, name, f"{text}; {late}", _AGAIN)
                continue
            cordoned = sum(sizes[at] for sizes in cordoned_sizes)
            if cordoned and offered == expected + cordoned:
                text += ", as if none were cordoned"
            # The kubelet writes the node status every ten seconds by default: until then the status
            # may have the amounts from before the proxy registered.
            if just_started(facts, programs):
                text += (
                    "; agent or proxy have just started, the kubelet may not have updated it yet"
                )
                found.add(Level.UNKNOWN, name, text, _AGAIN)
            else:
                found.add(Level.ERROR, name, text, _NOTHING_OFFERED)
    yield from found.findings("equal to the cards on every node")


def _why_late(facts: Facts, node: NodeFacts) -> str:
    """Return why the node's status does not follow a change of its cards yet; empty if it should.

    The agent reads a cordon within ten seconds, and the kubelet writes the status every ten.
    """
    samples = facts.agents.get(node.node.name, UnreadSource(""))
    if isinstance(samples, UnreadSource):
        return ""
    read = {
        each.labels.get("card"): bool(each.value)
        for each in samples
        if each.name == f"{_AGENT}card_cordoned"
    }
    if any(read.get(card.uuid, card.cordoned) != card.cordoned for card in node.node.cards):
        return "the agent has not read the cordon of its cards yet, which it does within seconds"
    texts = {
        "cordon": "cards were cordoned or uncordoned",
        "health": "the health of cards has changed",
    }
    for cause, text in texts.items():
        age = value(samples, f"{_AGENT}offer_age_seconds", cause=cause)
        if age is not None and age < _STATUS_UPDATED_AFTER.total_seconds():
            return f"{text} {age:.0f} s ago, and the kubelet follows within seconds"
    return ""


def _find_unwritten(facts: Facts, node: str) -> tuple[Level, str]:
    """Return how bad it is that an agent for claims has not written its node's counts, and why."""
    started = [each.created for each in programs_on(facts, node, AGENT) if each.created]
    if started and facts.now - min(started) < _FORGOTTEN_AFTER:
        text = (
            "GPU pods are refused or wait, until the kubelet has forgotten the device plugin, "
            "about five minutes after the plugin's end"
        )
        return Level.WARNING, text
    text = (
        "the agent cannot write its cards' counts to the node, so GPU pods are refused or wait: "
        "the kubelet still knows the device plugin, or the API server refuses the change"
    )
    return Level.ERROR, text


def check_allocations(facts: Facts) -> Iterator[Finding]:
    """Compare the allocation annotations of pods with what agents report as held."""
    found, compared = FindingsByText(), 0
    for node in _nodes_with(facts.agents, f"{_AGENT}patches_pending"):
        text = "allocations are not written to the pods yet"
        run = f"{AGENT_LOGS}  # docs/operate.md#the-api-server-is-unreachable"
        if failing := _failing_on_pods(facts, node):
            text += f"; the agent cannot {failing}: see the check agent-requests"
            run = run if "unreachable" in failing else _LACKS
        found.add(Level.WARNING, node, text, run)
    nodes = () if isinstance(facts.nodes, UnreadSource) else facts.nodes
    existing = {
        each.node.name: {card.uuid for card in each.node.cards}
        for each in nodes
        if each.node.cards  # else they are unknown, or the agent cannot read any
    }
    missing = _find_pods_without_node(facts, found)
    undrained = {each.node.name for each in nodes if not each.serves_claims}
    unrecorded = list[UnrecordedContainer]()
    for each in require(facts.allocations):
        if each.node in missing:
            continue
        if isinstance(each, UnrecordedContainer):
            unrecorded.append(each)
            continue
        name = f"pod {each.namespace}/{each.pod}: container {each.container}"
        explain = f"kubectl gpu explain -n {each.namespace} {each.pod}"
        samples = facts.agents.get(each.node, UnreadSource(""))
        gone = sorted(each.cards - existing.get(each.node, each.cards))
        if gone:
            text = f"{name} holds {name_lost_cards(gone)} and cannot compute on it: "
            found.add(Level.WARNING, each.node, f"{text}delete the pod", explain)
        elif not each.running:
            continue
        elif each.by_claim and each.node in undrained:
            found.add(Level.ERROR, each.node, f"{name}: {UNSERVED}", explain)
        elif isinstance(samples, UnreadSource):
            text = "its agent's metrics cannot be read: allocations were not compared"
            found.add(Level.UNKNOWN, each.node, text)
        else:
            compared += 1
            if value(samples, f"{_AGENT}cards", state="served") and not _matches(each, samples):
                text = f"{name} holds other devices in the kubelet than in its annotation "
                is_new = just_started(facts, programs_on(facts, each.node, AGENT))
                text += "gpu-allocation" + "; the agent has just started" * is_new
                level, run = (Level.UNKNOWN, _AGAIN) if is_new else (Level.ERROR, explain)
                found.add(level, each.node, text, run)
    young = _report_unrecorded(facts, found, unrecorded)
    fine = f"compared {format_count(compared, 'container')}: all match their annotation"
    yield from found.findings(fine + f"; {young} just started, not recorded yet" * bool(young))


def _report_unrecorded(
    facts: Facts, found: FindingsByText, containers: Iterable[UnrecordedContainer]
) -> int:
    """Report running containers without a record; return how many have just started.

    A record comes within seconds. If the agent is known not to write it, nobody waits for it.
    """
    by_node: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for each in containers:
        is_late = each.since is None or facts.now - each.since >= _RECORDED_AFTER
        by_node[each.node, is_late].append(f"{each.pod}/{each.container}")
    run = _LACKS
    for (node, is_late), names in by_node.items():
        text = f"running without a recorded card: {name_some(sorted(names))}"
        if failing := _failing_on_pods(facts, node):
            level = Level.ERROR if is_late else Level.WARNING
            found.add(level, node, f"{text}; the agent cannot {failing}", run)
        elif is_late and just_started(facts, programs_on(facts, node, AGENT)):
            text += "; the agent has just started and may not have written it yet"
            found.add(Level.UNKNOWN, node, text, _AGAIN)
        elif is_late:
            found.add(Level.ERROR, node, text, run)
    return sum(len(names) for (_, is_late), names in by_node.items() if not is_late)


def _failing_on_pods(facts: Facts, node: str) -> str:
    """Return which requests of an agent that it needs to record pods fail; empty if none does."""
    samples = read_samples(facts.agents).get(node, ())
    return ", ".join(
        f"{each.labels.get('verb')} pods ({each.labels.get('reason')})"
        for each in samples
        if each.name == f"{_AGENT}requests_failing"
        and each.labels.get("resource") == "pods"
        and each.value
    )


def _find_pods_without_node(facts: Facts, found: FindingsByText) -> set[str]:
    """Report the pods on nodes that do not exist; return these nodes."""
    bound = require(facts.bound)
    missing = facts.find_missing(bound.values())
    for node in sorted(missing):
        pods = sorted(pod for pod, on in bound.items() if on == node)
        text = f"{missing_node(node)}, and still has {format_count(len(pods), 'GPU pod')}: delete "
        found.add(Level.WARNING, node, text + name_some(pods), _PODS_OF)
    return missing


def _matches(held: ReportedAllocation, samples: Samples) -> bool:
    labels = {"namespace": held.namespace, "pod": held.pod, "container": held.container}
    by_card = {
        each.labels.get("card", ""): each.value
        for each in samples
        if each.name == f"{_AGENT}container_cores_held" and labels.items() <= each.labels.items()
    }
    cards = {card for card, cores in by_card.items() if cores}
    return cards == held.cards and sum(by_card.values()) == held.cores
