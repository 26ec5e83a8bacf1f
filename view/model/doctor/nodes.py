"""Checks of what runs on GPU nodes: agents, proxies, cards, allocatable places, records."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta

from contract.demand import CORES_PER_CARD
from contract.inventory import Card, PublishedInventory
from contract.names import Names
from view.model.doctor.facts import (
    AGENT,
    PROXY,
    Facts,
    Finding,
    Held,
    Level,
    NodeState,
    Program,
    Samples,
    Unread,
    value,
)
from view.model.words import lost_in_words, summarize

NVIDIA = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
"""What NVIDIA's device plugin serves whole cards as, the second with replicas of them."""
_CHOICE = (
    "docs/install.md#2-choose-a-scheduler-how-cards-reach-containers-and-what-holds-the-limits"
)
_PREFIX = "gpu_turnstile_agent_"
_PROXY_PREFIX = "gpu_turnstile_proxy_"
_POD = "kubectl -n gpu-turnstile-node get pods --output wide --field-selector spec.nodeName={}"

_AGAIN = "kubectl gpu doctor --node {}"
_SETTLED_AFTER = timedelta(minutes=1)
_UNBOUND = "kubectl -n gpu-turnstile-node get events --field-selector reason=FailedScheduling"


class _ByText:
    """Findings of nodes, of which those that say the same are one."""

    def __init__(self, check: str) -> None:
        self._check = check
        self._nodes: dict[tuple[Level, str, str], set[str]] = defaultdict(set)

    def add(self, level: Level, node: str, text: str, run: str = "") -> None:
        """Note something about a node; ``{}`` in *run* stands for its name."""
        self._nodes[level, text, run].add(node)

    def findings(self, fine: str) -> Iterator[Finding]:
        """Return all, or one that says *fine* where nothing is wrong."""
        for (level, text, run), nodes in self._nodes.items():
            names = tuple(sorted(nodes))
            yield Finding(self._check, level, text, run.replace("{}", names[0]), names)
        if not self._nodes:
            yield Finding(self._check, Level.OK, fine)


def check_programs(facts: Facts) -> Iterator[Finding]:
    """See that each node that a DaemonSet chooses has a ready pod of it, and no other node has."""
    for part in (facts.nodes, facts.programs):
        if isinstance(part, Unread):
            yield Finding("agents", Level.UNKNOWN, part.why)
    if isinstance(facts.nodes, Unread) or isinstance(facts.programs, Unread):
        return
    for check, component in (("agents", AGENT), ("proxies", PROXY)):
        if not isinstance(facts.daemonsets, Unread) and component not in facts.daemonsets:
            text = f"there is no DaemonSet {component}"
            yield Finding(check, Level.ERROR, text, facts.install)
            continue
        chosen = {each.name for each in facts.nodes if component in each.chosen}
        if not chosen:
            text = "no node has a label that the DaemonSet chooses nodes by"
            run = "kubectl label node NODE gpu-turnstile.io/gpus=true"
            yield Finding(check, Level.ERROR, text, run)
            continue
        yield from _programs(check, chosen, [e for e in facts.programs if e.component == component])


def _programs(check: str, chosen: set[str], pods: Sequence[Program]) -> Iterator[Finding]:
    found, ready = _ByText(check), {each.node for each in pods if each.ready}
    for node in chosen - {each.node for each in pods}:
        found.add(Level.ERROR, node, "the DaemonSet chooses it, and no pod of it is there", _POD)
    for each in pods:
        if each.node in chosen and each.node not in ready:
            text = f"not ready: {each.why or 'it does not say why'}"
            found.add(Level.ERROR, each.node, text, _POD if each.bound else _UNBOUND)
        if each.node and each.node not in chosen:
            text = "is on a node that the DaemonSet does not choose, or that is not listed"
            found.add(Level.WARNING, each.node, text, "kubectl get node {} --show-labels")
    _compare_images(pods, found)
    yield from found.findings(f"ready on {len(ready)} of {len(chosen)} chosen nodes")


def _compare_images(pods: Sequence[Program], found: "_ByText") -> None:
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
    found = _ByText("kubelet")
    for node, samples in sorted(facts.agents.items()):
        if isinstance(samples, Unread):
            found.add(Level.UNKNOWN, node, samples.why)
            continue
        if value(samples, f"{_PREFIX}registered") == 0:
            found.add(Level.ERROR, node, "the kubelet does not know the agent's resources", _POD)
        if value(samples, f"{_PREFIX}list_readable") == 0:
            text = "PodResources List cannot be read: calls are decided by order"
            found.add(Level.WARNING, node, text, "docs/operate.md#the-kubelet-was-restarted")
        if value(samples, f"{_PREFIX}checkpoint_readable") == 0:
            text = "the kubelet's checkpoint cannot be read: containers start unproven"
            where = "docs/operate.md#the-kubelets-checkpoint-cannot-be-read"
            found.add(Level.WARNING, node, text, where)
    for node, samples in sorted(facts.proxies.items()):
        if isinstance(samples, Unread):
            found.add(Level.UNKNOWN, node, f"its proxy: {samples.why}")
        elif value(samples, f"{_PROXY_PREFIX}given_up"):
            text = "its proxy has told the kubelet that all devices are unhealthy: no agent serves"
            found.add(Level.ERROR, node, text, _POD)
    if facts.agents or facts.proxies:
        yield from found.findings("agents are registered; List and checkpoint can be read")
    elif isinstance(facts.programs, Unread):
        yield Finding("kubelet", Level.UNKNOWN, facts.programs.why)
    else:
        yield Finding("kubelet", Level.UNKNOWN, "no agent has been asked for its metrics")


def check_other_plugins(facts: Facts) -> Iterator[Finding]:
    """Find nodes whose cards another device plugin serves as well."""
    check = "other-plugins"
    if isinstance(facts.nodes, Unread):
        yield Finding(check, Level.UNKNOWN, facts.nodes.why)
        return
    core, found = Names(facts.domain).core, _ByText(check)
    for node in facts.nodes:
        for name in NVIDIA:
            if node.allocatable.get(name) and (AGENT in node.chosen or node.allocatable.get(core)):
                text = f"{name} is served here too: a card is given to two pods that do not share"
                found.add(Level.ERROR, node.name, text, "docs/gpu-operator.md")
    yield from found.findings(f"no GPU node serves {NVIDIA[0]} beside ours")


def check_cards(facts: Facts) -> Iterator[Finding]:
    """Tell of cards that are ill, in MIG mode or not served, and of inventories that are wrong."""
    check = "cards"
    if isinstance(facts.nodes, Unread):
        yield Finding(check, Level.UNKNOWN, facts.nodes.why)
        return
    found, cards = _ByText(check), 0
    ill = "docs/operate.md#a-card-is-lost-or-ill"
    for node in facts.nodes:
        if node.cards_problem:
            found.add(Level.ERROR, node.name, node.cards_problem, "kubectl describe node {}")
        for card in node.cards.cards if node.cards else ():
            cards += 1
            if card.unhealthy:
                found.add(Level.WARNING, node.name, f"card {card.index}: {card.unhealthy}", ill)
    texts = {
        "mig": "a card is in MIG mode and left out",
        "faulty": "a card could not be read when the agent looked",
        "late": "a card came later, and is served once the agent is started again",
    }
    for name, samples in facts.agents.items():
        if isinstance(samples, Unread):
            continue
        for state, text in texts.items():
            if value(samples, f"{_PREFIX}cards", state=state):
                found.add(Level.WARNING, name, text, "kubectl describe node {}")
        if value(samples, f"{_PREFIX}cards_problem"):
            text = "the cards cannot be looked at: no driver, or NVML does not answer"
            found.add(Level.ERROR, name, text, "docs/operate.md#the-node-offers-nothing")
    yield from found.findings(f"{cards} cards, all healthy")


def check_allocatable(facts: Facts) -> Iterator[Finding]:
    """Compare what the node's status offers with the cards that may be given."""
    check = "allocatable"
    if isinstance(facts.nodes, Unread):
        yield Finding(check, Level.UNKNOWN, facts.nodes.why)
        return
    found, names = _ByText(check), Names(facts.domain)
    for node in facts.nodes:
        if node.cards is None:
            if AGENT in node.chosen and not node.cards_problem:
                text = "the agent has not written which cards it has"
                found.add(Level.ERROR, node.name, text, _POD)
            continue
        for name, there in ((names.core, _cores(node)), (names.memory, _blocks(node.cards, node))):
            offered = node.allocatable.get(name, 0)
            if offered == there:
                continue
            text = f"{name}: the node's status offers {offered}, its cards have {there}"
            if _is_new(facts, node):
                new = f"{text}; agent or proxy are new, the kubelet may not have written it since"
                found.add(Level.UNKNOWN, node.name, new, _AGAIN)
            else:
                found.add(Level.ERROR, node.name, text, "docs/operate.md#the-node-offers-nothing")
    yield from found.findings("as the cards say, on every node")


def _is_new(facts: Facts, node: NodeState) -> bool:
    """Tell whether the agent or the proxy of a node has been ready for less than a minute.

    A kubelet writes a node's status every ten seconds, if it was not told otherwise: until then it
    has what the kubelet knew between two proxies.
    """
    programs = () if isinstance(facts.programs, Unread) else facts.programs
    return any(
        facts.now - each.since < _SETTLED_AFTER
        for each in programs
        if each.node == node.name and each.component in (AGENT, PROXY) and each.since
    )


def _cores(node: NodeState) -> int:
    return CORES_PER_CARD * len(_given(node))


def _blocks(cards: PublishedInventory, node: NodeState) -> int:
    return sum(card.memory // cards.memory_block for card in _given(node))


def _given(node: NodeState) -> Sequence[Card]:
    cards = node.cards.cards if node.cards else ()
    return [card for card in cards if not card.unhealthy and card.uuid not in node.cordoned]


def check_enforcement(facts: Facts) -> Iterator[Finding]:
    """Tell whether anything holds containers to their share, and whether it is old."""
    check = "enforcement"
    if isinstance(facts.enforcement, Unread):
        yield Finding(check, Level.UNKNOWN, facts.enforcement.why)
        return
    if facts.enforcement == "none":
        text = "off: nothing holds a container to its share"
        yield Finding(check, Level.WARNING, text, _CHOICE)
        return
    found = _ByText(check)
    for node, samples in facts.agents.items():
        if not isinstance(samples, Unread) and value(samples, f"{_PREFIX}hami_core_outdated"):
            text = "HAMi-core is older than 2026-02-03: programs wait 52 seconds at their start"
            found.add(Level.WARNING, node, text, "docs/install.md#what-hami-core-needs-on-a-node")
    yield from found.findings(facts.enforcement)


def check_records(facts: Facts) -> Iterator[Finding]:
    """Compare what pods say that they got with what agents say that they hold."""
    check, found = "records", _ByText("records")
    for node, samples in facts.agents.items():
        if isinstance(samples, Unread):
            continue
        waiting = value(samples, f"{_PREFIX}patches_pending")
        if waiting:
            text = "allocations are not written to their pods yet"
            found.add(Level.WARNING, node, text, "docs/operate.md#the-api-server-is-away")
    if isinstance(facts.held, Unread):
        yield Finding(check, Level.UNKNOWN, facts.held.why)
        return
    compared = 0
    nodes = () if isinstance(facts.nodes, Unread) else facts.nodes
    there = {each.name: {card.uuid for card in each.cards.cards} for each in nodes if each.cards}
    for each in facts.held:
        pod = f"{each.namespace}/{each.pod}"
        explain = f"kubectl gpu explain -n {each.namespace} {each.pod}"
        lost = sorted(each.cards - there.get(each.node, each.cards))
        if lost:
            text = (
                f"pod {pod}: container {each.container} is on {lost_in_words(lost)} and computes "
                "on nothing there: delete the pod"
            )
            found.add(Level.WARNING, each.node, text, explain)
            continue
        samples = facts.agents.get(each.node, Unread(""))
        if isinstance(samples, Unread):
            text = "its agent's metrics cannot be read: what pods hold was not compared"
            found.add(Level.UNKNOWN, each.node, text)
            continue
        compared += 1
        if value(samples, f"{_PREFIX}cards", state="served") and not _agrees(each, samples):
            text = (
                f"pod {pod}: container {each.container} holds something else by the kubelet than "
                "its annotation gpu-allocation says"
            )
            found.add(Level.ERROR, each.node, text, explain)
    count = f"{compared} container{'s' * (compared != 1)}"
    yield from found.findings(f"of {count}, all hold what their annotation says")


def _agrees(held: Held, samples: Samples) -> bool:
    by_card: dict[str, float] = {}
    for each in samples:
        labels = each.labels
        if each.name == f"{_PREFIX}container_cores_held" and (
            labels.get("namespace"),
            labels.get("pod"),
            labels.get("container"),
        ) == (held.namespace, held.pod, held.container):
            by_card[labels.get("card", "")] = each.value
    return {card for card, cores in by_card.items() if cores} == held.cards and sum(
        by_card.values()
    ) == held.cores
