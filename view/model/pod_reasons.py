"""Why a pod is pending, refused, failing or failed, in one line. Pure.

Reasons other than cards, such as taints and affinity, are quoted from kube-scheduler.
"""

from collections.abc import Iterable, Sequence
from signal import Signals

from contract.text import format_count
from placement.cluster.holdings import Provenance
from view.model.claims import NO_DEVICES, NOT_PREPARED, UNSEEN, TemplateFacts, why_no_claim
from view.model.node_fits import PodClassFit, after_gates
from view.model.pod_facts import PodFacts, failing, refusal_text
from view.model.queues import GATES, QueueReport, QueueState
from view.model.reports import ContainerStatus, EventReport, PodReport, Stage, Termination
from view.model.words import name_some

_GATED = "SchedulingGated"
_UNSCHEDULED, _VETOED = "FailedScheduling", "GPUStartVetoed"


def why_pending(
    facts: PodFacts,
    fit: PodClassFit,
    events: Sequence[EventReport],
    template: TemplateFacts | None = None,
    queue: QueueReport | None = None,
) -> str:
    """Return why a pod has no node yet; *fit* is where pods of its class fit.

    See :func:`view.model.claims.why_no_claim` for *events* and *template*; *queue* is what Kueue
    has decided, ``None`` if it was not read.
    """
    reason, message = scheduler_message(facts, events)
    if facts.report.deleting or facts.info.errors:
        return "it is being deleted" if facts.report.deleting else facts.info.errors[0]
    gates = facts.selection.gates
    if gates or reason == _GATED:
        then = f"would not fit: {fit.short}"
        then = f"would fit on {name_some(fit.nodes)}" if fit.nodes else then
        waits = f"; {after_gates(facts.selection, then)}" if gates else ""
        if queue is None or not facts.gated:
            return join_parts(_GATED, message) + waits
        if queue.waits and set(gates) <= {*GATES}:
            waits = f"; once admitted, it {then}" * (queue.state is not QueueState.INACTIVE)
        return f"{queue.text}{waits}"
    no_claim = why_no_claim(facts.report, events, template)
    if no_claim:
        return no_claim
    if fit.nodes or fit.excluded:
        status = f': "{message}"' if message else " has not reported anything yet"
        status += f" ({UNSEEN})" * (NO_DEVICES in message)
        text = f"it fits on the cards of {name_some(fit.nodes or fit.excluded)}"
        excluded = "" if fit.nodes else f"; {fit.short}"
        return f"{text}{excluded}; {facts.report.scheduler}{status}"
    evicted = f"; pods of lower priority are evicted for it on {facts.nominated}"
    return fit.short + (evicted if facts.nominated else "")


def scheduler_message(facts: PodFacts, events: Iterable[EventReport]) -> tuple[str, str]:
    """Return reason and message of the condition, or of the newest Event if there is none."""
    if not facts.unscheduled[0]:
        for event in events:
            if event.reason == _UNSCHEDULED:
                return event.reason, event.message
    return facts.unscheduled


def why_stopped(pod: PodReport, events: Iterable[EventReport]) -> str:
    """Return why a pod with a node was refused, fails or failed; empty if nothing is wrong.

    *events* are sorted, the newest first.
    """
    match pod.stage:
        case Stage.SUCCEEDED:
            return ""
        case Stage.REFUSED:
            return refusal_text(pod.message) or pod.reason
        case Stage.FAILED:
            wrong = [each for each in pod.statuses if each.ending and each.ending.exit_code]
            texts = [join_parts(pod.reason, pod.message), *map(describe_status, wrong)]
            return "; ".join(filter(None, texts)) or "its phase is Failed, without a reason"
        case Stage.STARTING | Stage.FAILING:
            reasons = (_VETOED,) if is_recorded(pod) or not pod.claim else NOT_PREPARED
            for event in events:
                if event.reason in reasons:
                    return event.message
    # A container that runs again is shown too: its last failure may be what a user looks for.
    now = failing(pod.statuses)
    again = [each for each in pod.statuses if each.restarts and each.ending]
    return "; ".join(map(describe_status, [now] if now else again))


def is_recorded(pod: PodReport) -> bool:
    """Return whether the agent has reported the cards of a pod."""
    return any(each.source is Provenance.RECORDED for each in pod.containers)


def describe_status(status: ContainerStatus) -> str:
    """Describe the state of a container: why it waits, how it ended, how often it restarted."""
    texts = [join_parts(status.reason, status.message)]
    ending = status.ending
    if ending is not None:
        text = ", ".join(filter(None, (ending.reason, f"exit code {format_exit_code(ending)}")))
        last = "" if status.state == "terminated" else "last ended with "
        texts.append(join_parts(f"{last}{text}", ending.message))
    if status.restarts:
        texts.append(f"restarted {format_count(status.restarts, 'time')}")
    return f"{status.name}: {'; '.join(filter(None, texts)) or status.state or 'unknown'}"


def format_exit_code(ending: Termination) -> str:
    """Format an exit code, with its signal: a runtime returns 128 plus the signal."""
    number = ending.signal or ending.exit_code - 128
    signal = f" ({Signals(number).name})" if number in set(Signals) else ""
    return f"{ending.exit_code}{signal}"


def join_parts(*parts: str) -> str:
    """Join the parts that are not empty with colons."""
    return ": ".join(filter(None, parts))
