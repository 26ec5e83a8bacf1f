"""Checks of Dynamic Resource Allocation, for clusters in which something of it is installed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from contract.claims import DRA_MODE, MODE_LABEL, driver_name
from contract.inventory import Amounts
from contract.names import Names
from contract.text import format_count
from view.model.doctor.control_plane import CLAIMED_PODS, installed, is_older
from view.model.doctor.facts import (
    AGENT,
    CLAIMS,
    Facts,
    Finding,
    Level,
    NodeSlice,
    UnreadSource,
    error,
    ok,
    require,
    unknown,
    warning,
)
from view.model.doctor.nodes import AGENT_LOGS, FindingsByText, just_started, programs_on
from view.model.node_facts import NodeFacts
from view.model.words import name_some

POLICIES = (
    "gpu-turnstile-agent-slices",
    "gpu-turnstile-claim-users",
    CLAIMED_PODS,
    "gpu-turnstile-claims-templates",
    "gpu-turnstile-own-claims",
)
"""The policies of ``deploy/components/dra``."""

_OLDEST = (1, 36)
_WHICH = "docs/dra.md#which-one"
_LABEL = f"kubectl label node NODE {MODE_LABEL}={DRA_MODE}  # docs/dra.md#install"
_SETTING = (
    "kubectl -n gpu-turnstile set env deployment/gpu-turnstile-webhook --list"
    "  # docs/dra.md#which-pods-get-a-claim"
)
_PENDING = "kubectl gpu  # docs/upgrade.md#from-the-device-plugin-to-dra-and-back"
_PAGE = "docs/operate.md#a-nodes-resourceslice-is-missing-or-wrong"
_SLICES = f"{AGENT_LOGS}  # {_PAGE}"
_GET_SLICES = f"kubectl get resourceslices --field-selector spec.nodeName={{}}  # {_PAGE}"


def in_use(facts: Facts) -> bool:
    """Return whether claims are served, or anything that belongs to them is there."""
    nodes = () if isinstance(facts.nodes, UnreadSource) else facts.nodes
    dry_run = None if isinstance(facts.dry_run, UnreadSource) else facts.dry_run
    return (
        installed(facts, CLAIMS)
        or any(each.serves_claims for each in nodes)
        or (dry_run is not None and (dry_run.claims == "on" or CLAIMED_PODS in dry_run.denied))
        or bool(facts.slices and not isinstance(facts.slices, UnreadSource))
    )


def check_api(facts: Facts) -> Iterator[Finding]:
    """Check that the API server has what claims need, and our DeviceClass."""
    version, exists = facts.version, facts.device_class
    if not isinstance(version, UnreadSource) and is_older(version, _OLDEST):
        yield error(f"{version}: claims need Kubernetes 1.36 or newer", _WHICH)
        return
    if facts.slices is None:
        text = "the API server does not serve resource.k8s.io/v1: no pod gets a card by a claim"
        yield error(text, f"kubectl api-resources --api-group resource.k8s.io  # {_WHICH}")
    elif isinstance(exists, UnreadSource):
        yield unknown(exists.why)
    else:
        name = f"DeviceClass {driver_name(Names(facts.domain))}"
        yield (
            ok(f"resource.k8s.io/v1 is served, {name} exists")
            if exists
            else error(f"{name} is missing: no claim is allocated", facts.install)
        )


def check_claims(facts: Facts) -> Iterator[Finding]:
    """Compare what the webhook's ``--claims`` does to GPU pods with the nodes that there are."""
    dry_run, nodes = require(facts.dry_run), require(facts.nodes)
    claims = sorted(each.node.name for each in nodes if each.serves_claims)
    plugin = sorted(each.node.name for each in nodes if each.node.cards and not each.serves_claims)
    bad = []
    if CLAIMED_PODS in dry_run.denied:
        text = f"a GPU pod gets no claim (--claims off), and a policy denies it: {dry_run.denied}"
        bad = [error(text, _SETTING)]
    elif dry_run.denied or not dry_run.stamped:
        yield unknown("the dry run of a GPU pod failed: see the check webhook")
        return
    elif dry_run.claims == "on" and not claims:
        text = (
            f"GPU pods get a claim (--claims on), and no node has the label {MODE_LABEL}={DRA_MODE}"
        )
        bad = [error(f"{text}: they wait", _LABEL)]
    elif dry_run.claims == "on" and plugin:
        text = "GPU pods get a claim (--claims on): no new one comes to a node with a device plugin"
        bad = [warning(text, _PENDING, tuple(plugin))]
    elif dry_run.claims == "away" and claims:
        text = "GPU pods get no claim (--claims away): no new one comes to a node that serves them"
        bad = [warning(text, _SETTING, tuple(claims))]
    elif dry_run.claims == "off" and claims:
        text = "GPU pods get no claim (--claims off): they start without a card on a node for them"
        bad = [error(text, _SETTING, tuple(claims))]
    bad += _check_waiting(facts, has_claims=dry_run.claims == "on")
    served = format_count(len(claims), "node")
    yield from bad or [ok(f"--claims {dry_run.claims}; {served} with {MODE_LABEL}={DRA_MODE}")]


def _check_waiting(facts: Facts, *, has_claims: bool) -> Iterator[Finding]:
    """Yield a finding about pods that were created before ``--claims`` was changed."""
    if isinstance(facts.waiting, UnreadSource):
        yield unknown(f"pending pods: {facts.waiting.why}")
        return
    old = sorted(pod for pod, claimed in facts.waiting.items() if claimed != has_claims)
    if old:
        have, now = ("no claim", "with one") if has_claims else ("a claim", "without one")
        text = f"{format_count(len(old), 'pod')} pending with {have}, created before --claims was "
        text += f"changed ({name_some(old)}): delete them, so that they are created again {now}"
        yield warning(text, _PENDING)


def check_slices(facts: Facts) -> Iterator[Finding]:
    """Compare the ResourceSlices, which schedulers read, with nodes and their inventories."""
    slices, nodes, found = require(facts.slices), require(facts.nodes), FindingsByText()
    if slices is None:
        return  # the check of the API reports it
    serving = {each.node.name for each in nodes if each.serves_claims}
    for node in nodes:
        own = [each for each in slices if each.node == node.node.name]
        if node.serves_claims:
            _check_node(facts, node, own, found)
        elif own:
            name, level = node.node.name, Level.ERROR
            text = "it has ResourceSlices and not the label: pods with a claim are bound to it"
            if just_started(facts, programs_on(facts, name, AGENT)):
                level = Level.WARNING
                text += ", until the kubelet deletes them, 30 s after the agent for claims has left"
            found.add(level, name, text, _GET_SLICES)
    missing = facts.find_missing(each.node for each in slices)
    for each in slices:
        if each.node in missing:
            text = "ResourceSlices of a node that does not exist"
            found.add(Level.WARNING, each.node, text, _GET_SLICES)
    fine = f"{format_count(len(serving), 'node')}: the same cards as in the inventory"
    yield from found.findings(fine)


def _check_node(
    facts: Facts, node: NodeFacts, slices: Sequence[NodeSlice], found: FindingsByText
) -> None:
    name, text = node.node.name, _wrong_with(node, slices)
    if text and just_started(facts, programs_on(facts, name, AGENT)):
        text += "; the agent has just started, it may not have written them yet"
        found.add(Level.UNKNOWN, name, text, f"kubectl gpu doctor --node {name}")
    elif text:
        found.add(Level.ERROR, name, text, _SLICES)


def _wrong_with(node: NodeFacts, slices: Sequence[NodeSlice]) -> str:
    """Return what is wrong with a node's slices, for schedulers; empty if nothing is."""
    if not slices:
        return "no ResourceSlice: kube-scheduler sees no card of it"
    generations = sorted({each.generation for each in slices})
    newest = [each for each in slices if each.generation == generations[-1]]
    if len(newest) < newest[0].parts:
        there = f"{len(newest)} of {newest[0].parts}"
        return f"{there} ResourceSlices are there: kube-scheduler uses none of them"
    if len(generations) > 1:
        several = " and ".join(map(str, generations))
        return f"ResourceSlices of generations {several}: old ones are left"
    if node.node.cards:
        pairs = zip(node.node.cards, node.node.sizes, strict=True)
        return _differences({card.uuid: size for card, size in pairs}, newest)
    return ""  # the check of cards reports it


def _differences(inventory: Mapping[str, Amounts], slices: Iterable[NodeSlice]) -> str:
    published = {uuid: size for each in slices for uuid, size in each.cards.items()}
    both = inventory.keys() & published.keys()
    texts = {
        "without": inventory.keys() - published.keys(),
        "with": published.keys() - inventory.keys(),
        "with other amounts of": {each for each in both if inventory[each] != published[each]},
    }
    parts = [f"{how} {name_some(sorted(cards))}" for how, cards in texts.items() if cards]
    return f"ResourceSlices differ from the inventory: {', '.join(parts)}" if parts else ""
