"""What is said of a pod or a Job that waits for Kueue, and of one that Kueue has admitted."""

from typing import Any

import pytest

from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.view import scenes
from tests.view.kueue import (
    ADMITTED,
    AT,
    INACTIVE,
    LATER,
    NO_QUOTA,
    NO_ROOM,
    QUOTA,
    RESERVED,
    RETRIED,
    check,
    condition,
    gated,
    promised,
    workload,
)
from tests.view.model.test_claims import step
from tests.view.model.test_state import explanation_of, state_of
from view.model.queues import QueueFacts, QueueKey, QueueState, find_key, newest

KEPT = "2025-11-22T09:05:00Z"
IN = "it waits in queue team-a (ClusterQueue gpus)"
HAS = "it has quota in queue team-a (ClusterQueue gpus)"
FAILED_CHECKS = "The workload has failed admission checks"
RESET = "Reset to Pending after eviction. Previously: Retry"
EVICTED = condition("Evicted", "True", RETRIED, "AdmissionCheck")
TIMEOUT = "Exceeded the PodsReady timeout default/job-train-1f2e3"
TIMED_OUT = condition("Evicted", "True", TIMEOUT, "PodsReadyTimeout")
REJECTED = 'The workload is deactivated due to AdmissionCheck in Rejected state: "other"'
UNANSWERED = (
    f"{HAS}; check cards has not answered since {AT}. If this lasts, its controller does not run: "
    "kubectl gpu doctor"
)
NOBODY = " (its controller does not run: kubectl gpu doctor)"
KEEPS = f"{HAS}; check cards keeps cards for it until {KEPT}, and waits for the end of"
DEACTIVATED = (
    "Workload job-train-1f2e3 is deactivated (spec.active: false), so Kueue does not try it again"
)
UNKNOWN = "what Kueue has decided about it is unknown"
GATED = (
    "it waits for its scheduling gates (kueue.x-k8s.io/admission) to be removed; then it would "
    "fit on n1"
)
AGAIN: dict[str, Any] = {"requeueState": {"requeueAt": LATER}}
PENDING, CHECKING = QueueState.PENDING, QueueState.CHECKING


def facts(obj: Json | None, inactive: str = "", unread: str = "") -> QueueFacts:
    return QueueFacts(obj, "" if obj is None else "gpus", inactive, unread)


@pytest.mark.parametrize(
    ("found", "state", "text"),
    [
        (facts(None), PENDING, "Kueue has not made a Workload for it yet"),
        (
            facts(None, unread="it is forbidden"),
            QueueState.UNKNOWN,
            f"{UNKNOWN} (it is forbidden)",
        ),
        (facts(workload()), PENDING, f"{IN}: Kueue has not decided about it yet"),
        (facts(workload(NO_QUOTA)), PENDING, f'{IN} for quota: "{QUOTA}"'),
        (
            facts(workload(condition("QuotaReserved", "False", "x"), **AGAIN), inactive=INACTIVE),
            PENDING,
            f'{IN}: "{INACTIVE}"{NOBODY}. Kueue tries again at {LATER}',
        ),
        (facts(workload(NO_QUOTA), inactive="it is stopped"), PENDING, f'{IN}: "it is stopped"'),
        # Another controller's: Kueue has reset the check, and its reason is in two conditions.
        (
            facts(
                workload(
                    condition("QuotaReserved", "False", RETRIED),
                    EVICTED,
                    admissionChecks=[check("Pending", RESET, requeueAfterSeconds=5, retryCount=1)],
                    **AGAIN,
                )
            ),
            PENDING,
            f'{IN}: check cards: "{NO_ROOM}". Kueue tries again at {LATER}',
        ),
        (
            facts(
                workload(
                    condition("QuotaReserved", "False", FAILED_CHECKS),
                    EVICTED,
                    admissionChecks=[check("Retry", NO_ROOM, retryCount=1)],
                )
            ),
            PENDING,
            f'{IN}: check cards: "{NO_ROOM}". It gets quota again once it finds cards',
        ),
        (
            facts(workload(RESERVED, EVICTED)),
            PENDING,
            f'{IN}: check cards: "{NO_ROOM}"',
        ),
        (
            facts(workload(NO_QUOTA, EVICTED)),
            PENDING,
            f'{IN} for quota: "{QUOTA}", after it was evicted: check cards: "{NO_ROOM}"',
        ),
        (
            facts(workload(condition("QuotaReserved", "False", TIMEOUT), TIMED_OUT)),
            PENDING,
            f'{IN}: "{TIMEOUT}"',
        ),
        (facts(workload(RESERVED, admissionChecks=[check("Pending")])), CHECKING, UNANSWERED),
        (
            facts(workload(RESERVED, admissionChecks=[check("Pending", RESET)])),
            CHECKING,
            UNANSWERED,
        ),
        (
            facts(workload(RESERVED, admissionChecks=[check("Retry", NO_ROOM)])),
            CHECKING,
            f'{HAS}; check cards is Retry: "{NO_ROOM}"',
        ),
        (
            facts(workload(RESERVED, admissionChecks=[check("Pending", promised("n9"))])),
            CHECKING,
            f"{KEEPS} pods that hold them",
        ),
        (
            facts(workload(RESERVED, admissionChecks=[check("Ready", promised())])),
            CHECKING,
            f"{HAS}; Kueue admits it next",
        ),
        (
            facts(workload(RESERVED, ADMITTED, admissionChecks=[check("Ready", promised())])),
            QueueState.ADMITTED,
            f"it is admitted in queue team-a (ClusterQueue gpus); its cards are kept until {KEPT}",
        ),
        (
            facts(workload(RESERVED, ADMITTED)),
            QueueState.ADMITTED,
            "it is admitted in queue team-a (ClusterQueue gpus)",
        ),
        (
            facts(workload(condition("Evicted", "True", REJECTED, "Deactivated"), active=False)),
            QueueState.INACTIVE,
            f'{DEACTIVATED}: "{REJECTED}"',
        ),
        (
            facts(workload(condition("Finished", "True", "Job finished", "Succeeded"))),
            QueueState.FINISHED,
            'its Workload has finished: "Job finished"',
        ),
    ],
)
def test_what_kueue_has_decided_is_one_sentence(
    found: QueueFacts, state: QueueState, text: str
) -> None:
    report = state_of([make_node("n1", 1)], []).report_queue(found)
    assert (report.state, report.text) == (state, text)
    if found.obj is not None:
        assert (report.workload, report.queue) == ("job-train-1f2e3", "team-a")
        assert report.at == (AT if found.obj["status"]["conditions"] else "")


def test_a_check_that_keeps_cards_names_the_pods_that_end_there() -> None:
    held = [scenes.running(name, (40, 4), "n1", 0) for name in ("a", "b")]
    held.append(scenes.running("elsewhere", (40, 4), "n1", 1))
    for each in (held[0], held[2]):
        each["metadata"]["deletionTimestamp"] = AT
    found = facts(workload(RESERVED, admissionChecks=[check("Pending", promised())]))
    text = state_of([make_node("n1", 2)], held).report_queue(found).text
    assert text == f"{KEEPS} default/a"


@pytest.mark.parametrize(
    ("found", "summary", "queued"),
    [
        (
            facts(workload(NO_QUOTA)),
            f'{IN} for quota: "{QUOTA}"; once admitted, it would fit on n1',
            "missing",
        ),
        (
            facts(None, unread="no"),
            f"{UNKNOWN} (no); {GATED}",
            "missing",
        ),
        (
            facts(workload(active=False)),
            DEACTIVATED,
            "wrong",
        ),
    ],
)
def test_of_a_pod_with_the_gate_of_kueue_its_decision_is_the_reason(
    found: QueueFacts, summary: str, queued: str
) -> None:
    state = state_of([make_node("n1", 1)], [gated(scenes.waiting("a", (60, 4)))])
    before = explanation_of(state, "a")
    assert before.summary.startswith("is pending: SchedulingGated: ")
    assert before.queue is None
    state.put_queue("default", "a", found)
    after = explanation_of(state, "a")
    assert after.summary == f"is pending: {summary}"
    assert after.queue is not None
    assert step(after, "queued") == (queued, after.queue.text)
    assert [each.name for each in after.steps] == ["created", "admitted", "queued", "bound"]


def test_of_a_pod_that_kueue_has_admitted_the_cards_are_the_reason() -> None:
    pod = scenes.waiting("a", (60, 4))
    pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] = "job-train-1f2e3"
    state = state_of([make_node("n1", 1)], [scenes.running("b", (60, 4), "n1", 0), pod])
    summary = explanation_of(state, "a").summary
    for found in (workload(RESERVED, ADMITTED), None):
        state.put_queue("default", "a", facts(found, unread="" if found else "no"))
        later = explanation_of(state, "a")
        assert later.summary == summary
        assert step(later, "queued")[0] == ("done" if found else "missing")
    # Neither without Kueue, nor if its label is left over where it does not manage pods.
    for nothing in (None, facts(None)):
        state.put_queue("default", "a", nothing)
        assert explanation_of(state, "a").queue is None


LABELS = {"kueue.x-k8s.io/pod-group-name": "gang"}


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({}, None),
        ({"labels": {"app": "x"}, "annotations": {"x.io/kueue": "y"}}, None),
        ({"labels": {"kueue.x-k8s.io/queue-name": "team-a"}}, ()),
        ({"labels": LABELS}, ("gang",)),
        ({"annotations": {"kueue.x-k8s.io/workload": "w"}, "labels": LABELS}, ("w", "gang")),
        ({"labels": {"kueue.x-k8s.io/prebuilt-workload-name": "w"}}, ("w",)),
        ({"annotations": {NAMES.gpu_promise: "w/main"}}, ("w",)),
        ({"annotations": {"kueue.x-k8s.io/workload": 7}}, ()),
    ],
)
def test_the_workload_of_an_object_is_found_by_its_marks(
    metadata: Json, names: tuple[str, ...] | None
) -> None:
    found = find_key(metadata, ("u-a", "", "u-job"), NAMES)
    assert found == (None if names is None else QueueKey(names, ("u-a", "u-job")))


def test_of_slices_of_an_elastic_job_the_newest_that_goes_on_counts() -> None:
    first, second, third = (
        workload(RESERVED),
        workload(),
        workload(condition("Finished", "True", "")),
    )
    for number, each in enumerate((first, second, third)):
        each["metadata"]["creationTimestamp"] = f"2025-11-22T08:3{number}:00Z"
    assert newest([first, second, third]) is second
    assert newest([third]) is third


def test_a_pod_with_a_node_is_in_no_queue() -> None:
    bound = make_pod("a", (60, 4), node="n1")
    bound["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    state = state_of([make_node("n1", 1)], [bound])
    assert state.awaited_queue("default", "a") is None
    assert state.awaited_queue("default", "unknown") is None
