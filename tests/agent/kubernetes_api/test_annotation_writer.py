"""The queue of allocations: what is written, when again, and when not."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.allocator.model.pod_view import is_complete, parse_pod
from agent.errors import Unavailable
from agent.kubernetes_api import annotation_writer as module
from agent.kubernetes_api.annotation_writer import PatchQueue, allocation_patch
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from contract.allocation import Allocation, Evidence
from simulator.api.faults import Outage
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from tests.agent.fakes import NAMES, FakeClock, asks, eventually, init, make_manifest, make_pod

PODS = "/api/v1/namespaces/default/pods"
INDICES = {"GPU-0": 0, "GPU-1": 1}
GOT = {"main": Allocation(("GPU-1",), 30, 8, Evidence.WITNESS)}
LESS = {"main": Allocation(("GPU-0",), 30, 8, Evidence.ORDER)}


class FakePatchApi:
    """A ``PatchApi`` that fails as told, then takes everything."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.patches: list[tuple[str, Json]] = []
        self.uids: dict[str, str] = {}
        self.away = False
        self.at: list[float] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def patch_pod(self, namespace: str, name: str, patch: Json) -> None:
        self.at.append(time.monotonic())
        self.entered.set()
        assert self.go_on.wait(20)
        if self.errors:
            raise self.errors.pop(0)
        self.patches.append((f"{namespace}/{name}", patch))

    def get_pod(self, namespace: str, name: str) -> Json | None:
        if self.away:
            raise Unavailable("away")
        uid = self.uids.get(name)
        return None if uid is None else {"metadata": {"uid": uid}}


@contextmanager
def running(queue: PatchQueue) -> Iterator[None]:
    """Run the queue in a thread, and end it within two seconds."""
    thread = threading.Thread(target=queue.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        began = time.monotonic()
        queue.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert time.monotonic() - began < 2


def queue_to(api: FakePatchApi | Api, results: list[str]) -> PatchQueue:
    return PatchQueue(api=api, names=NAMES, indices=INDICES, on_result=results.append)


def test_a_patch_carries_the_uid_the_record_and_the_indices_of_ordinary_containers() -> None:
    view = make_pod("a", init(100, 0), asks(200, 9, "two"))
    allocations = {
        "init": Allocation(("GPU-0",), 100, 0, Evidence.TICKET),
        "two": Allocation(("GPU-0", "GPU-1"), 200, 9, Evidence.WITNESS),
    }
    patch = allocation_patch(view, allocations, names=NAMES, indices=INDICES)
    annotations = patch["metadata"].pop("annotations")
    assert patch == {"metadata": {"uid": view.id.uid}}
    assert json.loads(annotations.pop("tencent.com/gpu-allocation")) == {
        "init": {"cards": ["GPU-0"], "cores": 100, "memoryBlocks": 0, "evidence": "ticket"},
        "two": {
            "cards": ["GPU-0", "GPU-1"],
            "cores": 200,
            "memoryBlocks": 9,
            "evidence": "witness",
        },
    }
    assert annotations == {
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-gpu-idx-0": "0,1",
    }


def test_an_allocation_reaches_the_pod(api: Api, server: ApiServer, admin: ApiClient) -> None:
    server.apply(make_manifest("a", (30, 8), annotations={"kept": "yes"}))
    view = parse_pod(admin.get(f"{PODS}/a"), NAMES)
    results: list[str] = []
    queue = queue_to(api, results)
    with running(queue):
        queue.put(view, {"c0": GOT["main"]})
        eventually(lambda: results == ["written"], "it is written")
    written = parse_pod(admin.get(f"{PODS}/a"), NAMES)
    assert written.assigned
    assert written.recorded == {"c0": GOT["main"]}
    assert admin.get(f"{PODS}/a")["metadata"]["annotations"]["kept"] == "yes"
    assert queue.pending() == 0


def test_it_waits_out_an_outage(api: Api, server: ApiServer, admin: ApiClient) -> None:
    server.apply(make_manifest("a", (30, 8)))
    view = parse_pod(admin.get(f"{PODS}/a"), NAMES)
    results: list[str] = []
    queue = queue_to(api, results)
    server.set_outage(Outage.UNAVAILABLE)
    with running(queue):
        queue.put(view, {"c0": GOT["main"]})
        eventually(lambda: len(results) >= 2, "it is tried again")
        assert queue.pending() == 1
        server.set_outage(Outage.NONE)
        eventually(lambda: results[-1] == "written", "it is written")
    assert set(results[:-1]) == {"retried"}


@pytest.mark.parametrize("successor", [False, True])
def test_a_pod_that_is_gone_is_given_up_and_its_successor_untouched(
    api: Api, server: ApiServer, admin: ApiClient, successor: bool
) -> None:
    server.apply(make_manifest("a", (30, 8)))
    view = parse_pod(admin.get(f"{PODS}/a"), NAMES)
    admin.delete(f"{PODS}/a", grace_period_seconds=0)
    if successor:
        server.apply(make_manifest("a", (30, 8)))
    results: list[str] = []
    queue = queue_to(api, results)
    with running(queue):
        queue.put(view, {"c0": GOT["main"]})
        eventually(lambda: results == ["dropped"], "it is given up")
    assert queue.pending() == 0
    if successor:
        assert not parse_pod(admin.get(f"{PODS}/a"), NAMES).assigned


@pytest.mark.parametrize("error", [Gone("expired"), Rejected(404, "no such pod")])
def test_a_pod_that_is_gone_is_not_tried_again(error: Exception) -> None:
    api, results = FakePatchApi(error), list[str]()
    queue = queue_to(api, results)
    with running(queue):
        queue.put(make_pod("a", asks(30, 8)), GOT)
        queue.put(make_pod("b", asks(30, 8)), GOT)
        eventually(lambda: results == ["dropped", "written"], "both are settled")
    assert [name for name, _ in api.patches] == ["default/b"]


def test_a_fault_of_ours_with_one_pod_does_not_end_the_writing_for_others() -> None:
    api, results = FakePatchApi(KeyError("unforeseen")), list[str]()
    queue = queue_to(api, results)
    with running(queue):
        queue.put(make_pod("a", asks(30, 8)), GOT)
        queue.put(make_pod("b", asks(30, 8)), GOT)
        eventually(lambda: results.count("written") == 2, "both are written")


def test_a_failing_pod_does_not_hold_up_another() -> None:
    api, results = FakePatchApi(*[Unavailable("away")] * 3), list[str]()
    queue = queue_to(api, results)
    with running(queue):
        for name in "abc":
            queue.put(make_pod(name, asks(30, 8)), GOT)
        eventually(lambda: results.count("written") == 3, "all are written")
    assert results[:3] == ["retried"] * 3


def test_waits_grow_between_tries() -> None:
    api, results = FakePatchApi(*[Unavailable("away")] * 3), list[str]()
    queue = queue_to(api, results)
    with running(queue):
        queue.put(make_pod("a", asks(30, 8)), GOT)
        eventually(lambda: results[-1:] == ["written"], "it is written")
    gaps = [later - earlier for earlier, later in zip(api.at, api.at[1:], strict=False)]
    assert [gap >= least for gap, least in zip(gaps, [0.1, 0.2, 0.4], strict=True)] == [True] * 3


def test_waits_grow_to_a_bound_and_never_overflow() -> None:
    clock = FakeClock()
    queue = PatchQueue(
        api=FakePatchApi(), names=NAMES, indices=INDICES, clock=clock, jitter=lambda: 0.0
    )
    view = make_pod("a", asks(30, 8))
    queue.put(view, GOT)
    for _ in range(2000):
        queue._later(view.id)
    assert queue._tries[view.id] == (2000, clock.now + 30.0)


@pytest.mark.parametrize(
    ("served", "complete"),
    [
        (["init"], False),
        (["init", "one"], False),
        (["one", "two"], True),  # what the init container got nobody can tell any more (K4)
        (["init", "one", "two"], True),
    ],
)
def test_only_a_complete_record_says_that_the_pod_is_assigned(
    served: list[str], complete: bool
) -> None:
    view = make_pod("a", init(30, 8), asks(30, 8, "one"), asks(30, 8, "two"))
    allocations = {name: Allocation(("GPU-0",), 30, 8, Evidence.TICKET) for name in served}
    patch = allocation_patch(view, allocations, names=NAMES, indices=INDICES)
    assert ("tencent.com/gpu-assigned" in patch["metadata"]["annotations"]) is complete


def test_the_record_of_a_pod_of_init_containers_alone_is_complete_with_the_last() -> None:
    view = make_pod("a", init(30, 8, "first"), init(30, 8, "last"))
    got = Allocation(("GPU-0",), 30, 8, Evidence.TICKET)
    assert not is_complete(view.demand, {"first": got})
    assert not is_complete(view.demand, {"last": got})
    assert is_complete(view.demand, {"first": got, "last": got})


def test_after_a_conflict_with_another_writer_the_record_is_written_all_the_same() -> None:
    """One 409 says nothing: the pod is read, and it is still the same pod."""
    api, results = FakePatchApi(*[Rejected(409, "the object has been modified")] * 2), list[str]()
    queue, view = queue_to(api, results), make_pod("a", asks(30, 8))
    api.uids["a"] = view.id.uid
    with running(queue):
        queue.put(view, GOT)
        eventually(lambda: results == ["retried", "retried", "written"], "it is written at last")
    assert [name for name, _ in api.patches] == ["default/a"]


@pytest.mark.parametrize("now_there", [None, "another UID"])
def test_after_a_conflict_with_a_successor_the_record_is_dropped(now_there: str | None) -> None:
    api, results = FakePatchApi(Rejected(409, "precondition failed: UID")), list[str]()
    queue = queue_to(api, results)
    if now_there is not None:
        api.uids["a"] = now_there
    with running(queue):
        queue.put(make_pod("a", asks(30, 8)), GOT)
        eventually(lambda: results == ["dropped"], "it is given up")
    assert not api.patches


def test_a_conflict_that_cannot_be_explained_now_is_tried_again() -> None:
    api, results = FakePatchApi(Rejected(409, "conflict")), list[str]()
    queue = queue_to(api, results)
    api.away = True
    with running(queue):
        queue.put(make_pod("a", asks(30, 8)), GOT)
        eventually(lambda: results == ["retried", "written"], "it is written at last")


def test_what_was_dropped_is_not_taken_for_written() -> None:
    """The API server may have answered 404 from a cache that lags; the pod is there after all."""
    api, results = FakePatchApi(Rejected(404, "not found")), list[str]()
    queue, view = queue_to(api, results), make_pod("a", asks(30, 8))
    with running(queue):
        queue.put(view, GOT)
        eventually(lambda: results == ["dropped"], "it is given up")
        queue.put(view, GOT)
        eventually(lambda: results == ["dropped", "written"], "queued again, it is written")


@pytest.mark.parametrize("status", [400, 401, 403, 408, 413, 422, 423])
def test_what_may_pass_is_tried_again(status: int) -> None:
    """Permissions may come after the agent, and a policy may be corrected."""
    api, results = FakePatchApi(), list[str]()
    api.errors = [Rejected(status, "not yet")]
    queue = queue_to(api, results)
    queue.put(make_pod("a", asks(30, 8)), GOT)
    with running(queue):
        eventually(lambda: results == ["retried", "written"], "it is written at last")


def test_the_same_allocation_is_written_once() -> None:
    api, results = FakePatchApi(), list[str]()
    queue = queue_to(api, results)
    view = make_pod("a", asks(30, 8))
    queue.put(view, GOT)
    queue.put(view, GOT)
    assert queue.pending() == 1
    with running(queue):
        eventually(lambda: results == ["written"], "it is written")
        queue.put(view, GOT)
        assert queue.pending() == 0
        queue.put(view, LESS)
        eventually(lambda: results == ["written", "written"], "a correction is written")
    assert len(api.patches) == 2


def test_a_record_that_somebody_has_taken_away_is_written_again() -> None:
    clock, api, results = FakeClock(), FakePatchApi(), list[str]()
    queue = PatchQueue(api=api, names=NAMES, indices=INDICES, on_result=results.append, clock=clock)
    view = make_pod("a", asks(30, 8))
    with running(queue):
        queue.put(view, GOT)
        eventually(lambda: results == ["written"], "it is written")
        clock.now += 59
        queue.put(view, GOT)  # the watch lags
        assert queue.pending() == 0
        clock.now += 2
        queue.put(view, GOT)
        eventually(lambda: results == ["written"] * 2, "it is written again")


def test_a_correction_that_is_taken_back_while_it_waits_is_not_written() -> None:
    api, results = FakePatchApi(), list[str]()
    queue, view = queue_to(api, results), make_pod("a", asks(30, 8))
    with running(queue):
        queue.put(view, GOT)
        eventually(lambda: results == ["written"], "it is written")
        api.errors = [Unavailable("away")] * 2
        queue.put(view, LESS)
        queue.put(view, GOT)
        eventually(lambda: queue.pending() == 0, "all is written")
    assert api.patches[-1][1]["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] == "1"


def test_a_newer_allocation_replaces_one_that_waits() -> None:
    api, results = FakePatchApi(), list[str]()
    queue = queue_to(api, results)
    view = make_pod("a", asks(30, 8))
    queue.put(view, LESS)
    queue.put(view, GOT)
    with running(queue):
        eventually(lambda: results == ["written"], "one is written")
    assert [
        patch["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] for _, patch in api.patches
    ] == ["1"]


@pytest.mark.parametrize("errors", [[], [Unavailable("away")], [Rejected(409, "conflict")]])
def test_an_allocation_that_comes_while_an_older_one_is_written_is_written_too(
    errors: list[Exception],
) -> None:
    api, results = FakePatchApi(*errors), list[str]()
    queue = queue_to(api, results)
    view = make_pod("a", asks(30, 8))
    api.go_on.clear()
    with running(queue):
        queue.put(view, LESS)
        assert api.entered.wait(10)
        queue.put(view, GOT)
        api.go_on.set()
        eventually(lambda: queue.pending() == 0, "the newer one is written")
    assert api.patches[-1][1]["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] == "1"


def test_only_so_many_written_allocations_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 2)
    api, results = FakePatchApi(), list[str]()
    queue = queue_to(api, results)
    views = [make_pod(name, asks(30, 8)) for name in "abc"]
    with running(queue):
        for view in views:
            queue.put(view, GOT)
        eventually(lambda: len(results) == 3, "all are written")
        assert len(queue._written) == 2
