"""The admission of a pod, and the message for the user if it is rejected (K1, K9).

Pure: it yields the calls to make, as in ``devices``.
"""

from collections.abc import Iterable
from random import Random

from simulator.kubelet.devices import ActivePods, AllocateStep, Devices, RunningSteps, Steps
from simulator.kubelet.errors import AdmissionFailure, PluginCallFailed, PodRejected
from simulator.kubelet.pods import FAIL_AFTER, REJECT, REJECT_AFTER, Pod

_NODE_AFFINITY = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"


def in_order(batch: Iterable[Pod], random: Random) -> list[Pod]:
    """Sort a batch by creation time in whole seconds; pods of one second in random order (K1).

    A batch has the pods of one list, or of one watch event. The informer's store is a Go map and
    the sort is not stable, so pods of one second come in any order.
    """
    shuffled = list(batch)
    random.shuffle(shuffled)
    return sorted(shuffled, key=lambda pod: pod.created)


def status_of(error: AdmissionFailure) -> dict[str, str]:
    """Return the status of a rejected pod, in the kubelet's words (K9)."""
    if isinstance(error, PodRejected):
        reason, message = error.reason, f"Pod was rejected: {error}"
    else:
        reason = "UnexpectedAdmissionError"
        message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
    return {"phase": "Failed", "reason": reason, "message": message}


def admit(pod: Pod, devices: Devices, active: ActivePods) -> Steps:
    """Run the admission handlers for a pod, in the kubelet's order.

    The device manager comes before the predicates. So when a predicate rejects a pod, the plugins
    were called for it already; its devices are freed.

    Raises:
        AdmissionFailure: the pod is rejected, see :func:`status_of`.
    """
    if REJECT in pod.annotations:
        raise PodRejected(pod.annotations[REJECT], _NODE_AFFINITY)
    steps = _allocate_all(pod, devices, active)
    fail_after = pod.seconds(FAIL_AFTER)
    yield from steps if fail_after is None else _failing(steps, devices, int(fail_after))
    if REJECT_AFTER in pod.annotations:
        raise PodRejected(pod.annotations[REJECT_AFTER], _NODE_AFFINITY)


def _allocate_all(pod: Pod, devices: Devices, active: ActivePods) -> Steps:
    for container in pod.containers:
        yield from devices.allocate(pod.uid, container, active)


def _failing(steps: Steps, devices: Devices, allocations: int) -> Steps:
    """Run *steps* until *allocations* Allocate calls have succeeded, then fail like a plugin."""
    run = RunningSteps(steps)
    while allocations > 0 and run.step is not None:
        step = run.step
        try:
            reply = yield step
        except PluginCallFailed as error:
            run.failed(error)
        else:
            run.done(reply)
            allocations -= isinstance(step, AllocateStep)
    if allocations <= 0:
        devices.forget_in_flight()
        raise AdmissionFailure(
            "rpc error: code = Unknown desc = simulated failure of another device plugin"
        )
