"""Checks of what runs on GPU nodes: agents, proxies, cards, allocatable places, records."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from contract.inventory import NOTHING
from contract.names import Names
from placement.cluster.nodes import Problem
from view.model.doctor.facts import (
    AGENT,
    PROXY,
    Facts,
    Finding,
    Level,
    Maybe,
    ProgramPod,
    ReportedAllocation,
    Samples,
    UnreadSource,
    error,
    known,
    ok,
    unknown,
    value,
    warning,
)
from view.model.nodes import NVIDIA, NodeFacts
from view.model.words import count_of, lost_in_words, summarize

_CHOICE = "docs/install.md#2-choose-scheduler-device-injection-and-enforcement"
_AGENT, _PROXY = "gpu_turnstile_agent_", "gpu_turnstile_proxy_"
_POD = "kubectl -n gpu-turnstile-node get pods --output wide --field-selector spec.nodeName={}"
_AGAIN = "kubectl gpu doctor --node {}"
_SETTLED_AFTER = timedelta(minutes=1)
_UNBOUND = "kubectl -n gpu-turnstile-node get events --field-selector reason=FailedScheduling"
_DAEMONSET = "kubectl -n gpu-turnstile-node describe daemonset {}"
_ILL = "docs/operate.md#a-card-is-unhealthy"
_NOTHING_OFFERED = "docs/operate.md#the-node-offers-nothing"
_NOT_KNOWN = (Problem.NO_INVENTORY, Problem.UNREADABLE)
"""Of a node with one of these it is not known which cards it has."""


class _ByText:
    """Findings of nodes, of which those that say the same are one."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Level, str, str], set[str]] = defaultdict(set)

    def add(self, level: Level, nodes: str | Iterable[str], text: str, run: str = "") -> None:
        """Note something about a node or several; ``{}`` in *run* stands for the first of them."""
        names = [nodes] if isinstance(nodes, str) else [*nodes]
        if names:
            self._nodes[level, text, run].update(names)

    def findings(self, fine: str) -> Iterator[Finding]:
        """Return all, or one that says *fine*, if anything, where nothing is wrong."""
        for (level, text, run), nodes in self._nodes.items():
            names = tuple(sorted(nodes))
            yield Finding("", level, text, run.replace("{}", names[0]), names)
        if fine and not self._nodes:
            yield ok(fine)


def _where(replicas: Mapping[str, Maybe[Samples]], name: str, **labels: str) -> Iterator[str]:
    """Yield the nodes of which a metric that was read is something else than zero."""
    for node, samples in replicas.items():
        if not isinstance(samples, UnreadSource) and value(samples, name, **labels):
            yield node


def _where_not(replicas: Mapping[str, Maybe[Samples]], name: str) -> Iterator[str]:
    """Yield the nodes of which a metric is zero."""
    for node, samples in replicas.items():
        if not isinstance(samples, UnreadSource) and value(samples, name) == 0:
            yield node


def check_programs(facts: Facts, component: str) -> Iterator[Finding]:
    """See that each node that a DaemonSet chooses has a ready pod of it, and no other node has."""
    pods = [each for each in known(facts.programs) if each.component == component]
    daemonset = known(facts.daemonsets).get(component)
    if daemonset is None:
        yield error(f"there is no DaemonSet {component}", facts.install)
        return
    if not daemonset.wanted:
        text = "no node has a label that the DaemonSet chooses nodes by"
        yield error(text, "kubectl label node NODE gpu-turnstile.io/gpus=true")
        return
    nodes = (
        None
        if isinstance(facts.nodes, UnreadSource)
        else {each.placed.name for each in facts.nodes}
    )
    ready = {each.node for each in pods if each.ready}
    found, counted = _ByText(), list[Finding]()
    if daemonset.there < daemonset.wanted:
        missing = count_of(daemonset.wanted - daemonset.there, "node")
        text = f"the DaemonSet chooses {missing} on which no pod of it is there"
        counted.append(error(text, _DAEMONSET.format(component)))
    if daemonset.misplaced:
        text = f"on {count_of(daemonset.misplaced, 'node')} that the DaemonSet does not choose"
        counted.append(warning(text, _DAEMONSET.format(component)))
    for each in pods:
        if nodes is not None and each.node and each.node not in nodes:
            found.add(Level.WARNING, each.node, "is on a node that is not listed", _POD)
        elif each.node and each.node not in ready:
            text = f"not ready: {each.why or 'it does not say why'}"
            found.add(Level.ERROR, each.node, text, _POD if each.bound else _UNBOUND)
    _compare_images(pods, found)
    yield from counted
    fine = f"ready on {len(ready)} of {daemonset.wanted} chosen nodes"
    yield from found.findings("" if counted else fine)


def _compare_images(pods: Sequence[ProgramPod], found: _ByText) -> None:
    """Tell of pods that run another image than most; of all where no image is the commonest."""
    ranked = Counter(each.image for each in pods).most_common()
    if len(ranked) < 2:
        return
    (common, most), (_, next_most), *_ = ranked
    for each in pods:
        if most == next_most:
            text = f"not one image on all: {summarize(each.image for each in pods)}"
            found.add(Level.WARNING, each.node, text)
        elif each.image != common:
            found.add(Level.WARNING, each.node, f"runs {each.image}; others run {common}")


def check_agents(facts: Facts) -> Iterator[Finding]:
    """See what agents say of their kubelet: registered, ``List`` and checkpoint readable."""
    if not facts.agents and not facts.proxies:
        known(facts.programs)
        yield unknown("no agent has been asked for its metrics")
        return
    found = _ByText()
    for whose, replicas in (("", facts.agents), ("its proxy: ", facts.proxies)):
        for node, samples in sorted(replicas.items()):
            if isinstance(samples, UnreadSource):
                found.add(Level.UNKNOWN, node, f"{whose}{samples.why}")
    silent = _where_not(facts.agents, f"{_AGENT}registered")
    found.add(Level.ERROR, silent, "the kubelet does not know the agent's resources", _POD)
    text = "PodResources List cannot be read: calls are decided by order"
    page = "docs/operate.md#list-cannot-be-read"
    found.add(Level.WARNING, _where_not(facts.agents, f"{_AGENT}list_readable"), text, page)
    text = "the kubelet's checkpoint cannot be read: containers start unproven"
    page = "docs/operate.md#the-kubelets-checkpoint-cannot-be-read"
    found.add(Level.WARNING, _where_not(facts.agents, f"{_AGENT}checkpoint_readable"), text, page)
    text = "its proxy has told the kubelet that all devices are unhealthy: no agent serves"
    found.add(Level.ERROR, _where(facts.proxies, f"{_PROXY}given_up"), text, _POD)
    yield from found.findings("agents are registered; List and checkpoint can be read")


def check_other_plugins(facts: Facts) -> Iterator[Finding]:
    """Find nodes whose cards another device plugin serves as well."""
    core, found = Names(facts.domain).core, _ByText()
    for node in known(facts.nodes):
        if not node.offered.get(core) and not _programs_on(facts, node, AGENT):
            continue
        for name in filter(node.offered.get, NVIDIA):
            text = f"{name} is served here too: a card is given to two pods that do not share"
            found.add(Level.ERROR, node.placed.name, text, "docs/gpu-operator.md")
    yield from found.findings(f"no GPU node serves {NVIDIA[0]} beside ours")


def _programs_on(facts: Facts, node: NodeFacts, *components: str) -> list[ProgramPod]:
    programs = () if isinstance(facts.programs, UnreadSource) else facts.programs
    name = node.placed.name
    return [each for each in programs if each.node == name and each.component in components]


def check_cards(facts: Facts) -> Iterator[Finding]:
    """Tell of cards that are ill, in MIG mode or not served, and of inventories that are wrong."""
    found, count = _ByText(), 0
    for node in known(facts.nodes):
        name = node.placed.name
        if node.unreadable:
            found.add(Level.ERROR, name, node.unreadable, "kubectl describe node {}")
        for card in node.placed.cards:
            count += 1
            if card.unhealthy:
                found.add(Level.WARNING, name, f"card {card.index}: {card.unhealthy}", _ILL)
    texts = {
        "mig": "a card is in MIG mode and left out",
        "faulty": "a card could not be read when the agent looked",
        "late": "a card came later, and is served once the agent is started again",
    }
    for state, text in texts.items():
        nodes = _where(facts.agents, f"{_AGENT}cards", state=state)
        found.add(Level.WARNING, nodes, text, "kubectl describe node {}")
    text = "the cards cannot be looked at: no driver, or NVML does not answer"
    found.add(Level.ERROR, _where(facts.agents, f"{_AGENT}cards_problem"), text, _NOTHING_OFFERED)
    yield from found.findings(f"{count} cards, all healthy")


def check_allocatable(facts: Facts) -> Iterator[Finding]:
    """Compare what the node's status offers with the cards that may be given."""
    found, names = _ByText(), Names(facts.domain)
    for node in known(facts.nodes):
        name, problem = node.placed.name, node.placed.problem
        programs = _programs_on(facts, node, AGENT, PROXY)
        if problem is Problem.NO_INVENTORY and any(each.component == AGENT for each in programs):
            text = "the agent has not written which cards it has"
            found.add(Level.ERROR, name, text, _POD)
        if problem in _NOT_KNOWN:
            continue
        pairs = zip(node.placed.cards, node.placed.sizes, strict=True)
        given = [size for card, size in pairs if not card.withheld]
        sums = map(sum, zip(NOTHING, *given, strict=True))
        for resource, there in zip((names.core, names.memory), sums, strict=True):
            offered = node.offered.get(resource, 0)
            if offered == there:
                continue
            text = f"{resource}: the node's status offers {offered}, its cards have {there}"
            # A kubelet writes a node's status every ten seconds, if it was not told otherwise:
            # until then it has what the kubelet knew between two proxies.
            if any(each.since and facts.now - each.since < _SETTLED_AFTER for each in programs):
                text += "; agent or proxy are new, the kubelet may not have written it since"
                found.add(Level.UNKNOWN, name, text, _AGAIN)
            else:
                found.add(Level.ERROR, name, text, _NOTHING_OFFERED)
    yield from found.findings("as the cards say, on every node")


def check_enforcement(facts: Facts) -> Iterator[Finding]:
    """Tell whether anything holds containers to their share, and whether it is old."""
    enforcement = known(facts.enforcement)
    if enforcement == "none":
        yield warning("off: nothing holds a container to its share", _CHOICE)
        return
    found, old = _ByText(), _where(facts.agents, f"{_AGENT}hami_core_outdated")
    text = "HAMi-core is older than 2026-02-03: programs wait 52 seconds at their start"
    found.add(Level.WARNING, old, text, "docs/options.md#what-hami-core-needs-on-a-node")
    yield from found.findings(enforcement)


def check_records(facts: Facts) -> Iterator[Finding]:
    """Compare what pods say that they got with what agents say that they hold."""
    found, compared = _ByText(), 0
    late = _where(facts.agents, f"{_AGENT}patches_pending")
    text = "allocations are not written to their pods yet"
    found.add(Level.WARNING, late, text, "docs/operate.md#the-api-server-is-unreachable")
    nodes = () if isinstance(facts.nodes, UnreadSource) else facts.nodes
    there = {
        each.placed.name: {card.uuid for card in each.placed.cards}
        for each in nodes
        if each.placed.problem not in _NOT_KNOWN
    }
    for each in known(facts.held):
        whose = f"pod {each.namespace}/{each.pod}: container {each.container}"
        explain = f"kubectl gpu explain -n {each.namespace} {each.pod}"
        samples = facts.agents.get(each.node, UnreadSource(""))
        lost = sorted(each.cards - there.get(each.node, each.cards))
        if lost:
            text = f"{whose} is on {lost_in_words(lost)} and computes on nothing there: "
            found.add(Level.WARNING, each.node, f"{text}delete the pod", explain)
        elif isinstance(samples, UnreadSource):
            text = "its agent's metrics cannot be read: what pods hold was not compared"
            found.add(Level.UNKNOWN, each.node, text)
        else:
            compared += 1
            if value(samples, f"{_AGENT}cards", state="served") and not _agrees(each, samples):
                text = f"{whose} holds something else by the kubelet than its annotation "
                found.add(Level.ERROR, each.node, f"{text}gpu-allocation says", explain)
    count = count_of(compared, "container")
    yield from found.findings(f"of {count}, all hold what their annotation says")


def _agrees(held: ReportedAllocation, samples: Samples) -> bool:
    whose = {"namespace": held.namespace, "pod": held.pod, "container": held.container}
    by_card = {
        each.labels.get("card", ""): each.value
        for each in samples
        if each.name == f"{_AGENT}container_cores_held" and whose.items() <= each.labels.items()
    }
    cards = {card for card, cores in by_card.items() if cores}
    return cards == held.cards and sum(by_card.values()) == held.cores
