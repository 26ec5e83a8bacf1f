"""Checks of pods that nodes refused in the last hour: again and again, or for want of a plugin."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta

from contract.text import format_count
from view.model.doctor.facts import Facts, Finding, RefusedPod, UnreadSource, ok, require, warning
from view.model.doctor.nodes import PODS_ON_NODE
from view.model.pod_facts import WITHOUT_PLUGIN, refusal_text
from view.model.pod_groups import repeated
from view.model.reports import PodReport
from view.model.words import duration

_RECENT = timedelta(hours=1)
_BEFORE_START, _AFTER_START = timedelta(minutes=1), timedelta(seconds=30)
"""How long before and after the start of a proxy the end of the one before it fails pods."""

_VARIES = re.compile(r"\b(?:GPU|MIG)-.*|[0-9]+", re.DOTALL)
_EXPLAIN = "kubectl gpu explain -n {} {}"
_AGAIN = f"{_EXPLAIN}  # docs/operate.md#a-deployment-is-refused-again-and-again"
_OUTAGES = "docs/operate.md#restarts-and-outages"
_FORGETS = "docs/operate.md#the-node-offers-nothing"


def check_refusals(facts: Facts) -> Iterator[Finding]:
    """Report owners whose pods are refused again and again, and nodes without a device plugin."""
    recent = [each for each in require(facts.refused) if facts.now - each.at <= _RECENT]
    recent.sort(key=lambda each: (each.at, each.pod.namespace, each.pod.name))
    nodes, owners = (
        defaultdict[str, list[RefusedPod]](list),
        defaultdict[str, list[RefusedPod]](list),
    )
    for each in recent:
        if _quoted(each):
            nodes[each.pod.node].append(each)
        elif each.pod.owner:
            owners[f"{each.pod.namespace}/{each.pod.owner}"].append(each)
    found = [_report_outage(facts, node, pods) for node, pods in sorted(nodes.items())]
    for _, pods in sorted(owners.items()):
        found += _report_loop(facts, pods)
    count = format_count(len(recent), "pod")
    yield from found or [ok(f"{count} refused in the last hour, none again and again")]


def _quoted(refused: RefusedPod) -> str:
    """Return the kubelet's own words if it had no device plugin; else empty."""
    return next((each for each in WITHOUT_PLUGIN if each in refused.pod.message), "")


def _report_loop(facts: Facts, refused: Sequence[RefusedPod]) -> Iterator[Finding]:
    pods, last = [each.pod for each in refused], refused[-1]
    often = repeated(pods)
    if not often:
        return
    kind, _, name = last.pod.owner.partition("/")
    counts = Counter(map(_reason, pods))  # of equally frequent ones the newest counts
    shown = max(reversed(pods), key=lambda each: counts[_reason(each)])
    text, run = refusal_text(shown.message) or shown.reason, _EXPLAIN
    if shown.misplaced:
        text, run = f"{shown.scheduler} does not see cards", _AGAIN
    if len(counts) > 1:
        often_so = counts[_reason(shown)]
        text += f" ({often_so} of {len(pods)}; {len(pods) - often_so} for other reasons)"
    text = f"{kind} {last.pod.namespace}/{name}: {often}, last {_ago(facts, last)}: {text}"
    nodes = tuple(sorted({each.node for each in pods if each.node}))
    run = run.format(shown.namespace, shown.name)
    yield warning(text, run, nodes)


def _reason(pod: PodReport) -> str:
    """Return why a pod was refused, without numbers and names of cards, which differ each time."""
    if pod.misplaced:
        return f"{pod.scheduler} does not see cards"
    text = refusal_text(pod.message) or pod.reason
    return _VARIES.sub("", text)


def _report_outage(facts: Facts, node: str, refused: Sequence[RefusedPod]) -> Finding:
    last = refused[-1]
    within = f" within {duration(last.at - refused[0].at)}" if len(refused) > 1 else ""
    nodes = () if isinstance(facts.nodes, UnreadSource) else facts.nodes
    by_claims = any(each.node.name == node and each.serves_claims for each in nodes)
    knew = "still knows the device plugin" if by_claims else "knew no agent"
    text = (
        f"{format_count(len(refused), 'pod')} failed{within}, last {_ago(facts, last)}, because "
        f'the kubelet {knew} ("{_quoted(last)}")'
    )
    if by_claims:
        return warning(text, f"{PODS_ON_NODE.format(node)}  # {_FORGETS}", (node,))
    starts = {} if isinstance(facts.proxy_starts, UnreadSource) else facts.proxy_starts
    start = starts.get(node)
    if start and any(-_BEFORE_START <= each.at - start <= _AFTER_START for each in refused):
        text += f": its proxy ended, the next one started at {start:%H:%M:%S} UTC"
    run = f"{PODS_ON_NODE.format(node)}  # {_OUTAGES}" if node else _OUTAGES
    return warning(text, run, (node,) if node else ())


def _ago(facts: Facts, refused: RefusedPod) -> str:
    return f"{duration(facts.now - refused.at)} ago"
