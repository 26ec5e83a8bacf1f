"""The queue of allocations: what is written, when again, and when not."""

import json
import threading
import time
from contextlib import AbstractContextManager

import pytest

from agent.allocator.model.pod_view import PodView
from agent.errors import Unavailable
from agent.kubernetes_api import annotation_writer as module
from agent.kubernetes_api.annotation_writer import PatchQueue, allocation_patch
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.pod_parser import is_complete
from contract.allocation import Allocation, Evidence
from tests.agent.fakes import NAMES, FakeClock, asks, eventually, init, make_pod
from tests.agent.threads import running

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


class Writing:
    """A queue, and what it said of its work."""

    def __init__(self, api: FakePatchApi | Api) -> None:
        self.results: list[str] = []
        self.clock = FakeClock()
        self.queue = PatchQueue(
            api=api,
            names=NAMES,
            indices=INDICES,
            on_result=self.results.append,
            clock=time.monotonic if isinstance(api, Api) else self.now,
        )

    def now(self) -> float:
        return time.monotonic() + self.clock.now

    def running(self) -> AbstractContextManager[None]:
        return running(self.queue.run, self.queue.stop)

    def wait(self, *results: str) -> None:
        eventually(lambda: self.results == list(results), f"{results}, not {self.results}")


def of(name: str = "a") -> PodView:
    return make_pod(name, asks(30, 8))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", (0.01, 30.0))


def test_an_init_container_that_was_recorded_stays_so_when_the_rest_is_told_alone() -> None:
    """Its places are taken back before the watch shows its annotation."""
    api, view = FakePatchApi(), make_pod("a", init(100, 0), asks(30, 8))
    writing = Writing(api)
    served = {"init": Allocation(("GPU-0",), 100, 0, Evidence.TICKET)}
    with writing.running():
        writing.queue.put(view, served)
        writing.wait("written")
        writing.queue.put(view, GOT)
        writing.wait("written", "written")
    written = api.patches[-1][1]["metadata"]["annotations"][NAMES.gpu_allocation]
    assert json.loads(written).keys() == {"init", "main"}


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


@pytest.mark.parametrize(
    ("errors", "results"),
    [
        ([Gone("expired")], ["dropped", "written"]),
        ([Rejected(404, "no such pod")], ["dropped", "written"]),
        ([KeyError("unforeseen")], ["retried", "written", "written"]),
        ([Unavailable("away")] * 2, ["retried", "retried", "written", "written"]),
    ],
)
def test_a_failing_pod_does_not_hold_up_another(
    errors: list[Exception], results: list[str]
) -> None:
    api = FakePatchApi(*errors)
    writing = Writing(api)
    writing.queue.put(of("a"), GOT)
    writing.queue.put(of("b"), GOT)
    with writing.running():
        eventually(lambda: writing.queue.pending() == 0, "both are settled")
        eventually(lambda: sorted(writing.results) == sorted(results), "and told")
    gone = results[0] == "dropped"
    assert {name for name, _ in api.patches} == {"default/b"} | (set() if gone else {"default/a"})


def test_waits_grow_between_tries() -> None:
    api = FakePatchApi(*[Unavailable("away")] * 3)
    writing = Writing(api)
    with writing.running():
        writing.queue.put(of(), GOT)
        writing.wait("retried", "retried", "retried", "written")
    gaps = [later - earlier for earlier, later in zip(api.at, api.at[1:], strict=False)]
    assert [gap >= least for gap, least in zip(gaps, [0.01, 0.02, 0.04], strict=True)] == [True] * 3


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


@pytest.mark.parametrize(
    ("now_there", "results"),
    [
        ("the same", ["retried", "written"]),  # one 409 says nothing: it is still the same pod
        ("nobody", ["dropped"]),
        ("another", ["dropped"]),
        ("not to be told", ["retried", "written"]),
    ],
)
def test_after_a_conflict_the_record_is_written_if_it_may_still_be_the_same_pod(
    now_there: str, results: list[str]
) -> None:
    api, view = FakePatchApi(Rejected(409, "the object has been modified")), of()
    writing = Writing(api)
    if now_there in {"the same", "another"}:
        api.uids["a"] = view.id.uid if now_there == "the same" else "another UID"
    api.away = now_there == "not to be told"
    with writing.running():
        writing.queue.put(view, GOT)
        writing.wait(*results)
    assert len(api.patches) == results.count("written")


def test_what_was_dropped_is_not_taken_for_written() -> None:
    """The API server may have answered 404 from a cache that lags; the pod is there after all."""
    writing, view = Writing(FakePatchApi(Rejected(404, "not found"))), of()
    with writing.running():
        writing.queue.put(view, GOT)
        writing.wait("dropped")
        writing.queue.put(view, GOT)
        writing.wait("dropped", "written")


def test_what_may_pass_is_tried_again() -> None:
    """Permissions may come after the agent, and a policy may be corrected."""
    statuses = [400, 401, 403, 408, 413, 422, 423]
    writing = Writing(FakePatchApi(*[Rejected(each, "not yet") for each in statuses]))
    with writing.running():
        writing.queue.put(of(), GOT)
        writing.wait(*["retried"] * len(statuses), "written")


def test_the_same_allocation_is_written_once_and_a_correction_after_it() -> None:
    api, view = FakePatchApi(), of()
    writing = Writing(api)
    writing.queue.put(view, GOT)
    writing.queue.put(view, GOT)
    assert writing.queue.pending() == 1
    with writing.running():
        writing.wait("written")
        writing.queue.put(view, GOT)
        assert writing.queue.pending() == 0
        writing.queue.put(view, LESS)
        writing.wait("written", "written")
    assert written_cards(api) == ["1", "0"]


def written_cards(api: FakePatchApi) -> list[str]:
    """The card's index in each patch."""
    index = NAMES.predicate_gpu_idx(0)
    return [patch["metadata"]["annotations"][index] for _, patch in api.patches]


def test_a_record_that_somebody_has_taken_away_is_written_again() -> None:
    writing, view = Writing(FakePatchApi()), of()
    with writing.running():
        writing.queue.put(view, GOT)
        writing.wait("written")
        writing.queue.put(view, GOT)  # the watch lags
        assert writing.queue.pending() == 0
        writing.clock.now += 61
        writing.queue.put(view, GOT)
        writing.wait("written", "written")


def test_a_correction_that_is_taken_back_while_it_waits_is_not_written() -> None:
    api, view = FakePatchApi(), of()
    writing = Writing(api)
    with writing.running():
        writing.queue.put(view, GOT)
        writing.wait("written")
        api.errors = [Unavailable("away")] * 2
        writing.queue.put(view, LESS)
        writing.queue.put(view, GOT)
        eventually(lambda: writing.queue.pending() == 0, "all is written")
    assert written_cards(api)[-1] == "1"


def test_a_newer_allocation_replaces_one_that_waits() -> None:
    api, view = FakePatchApi(), of()
    writing = Writing(api)
    writing.queue.put(view, LESS)
    writing.queue.put(view, GOT)
    with writing.running():
        writing.wait("written")
    assert written_cards(api) == ["1"]


def test_a_fault_in_finding_out_about_one_pod_does_not_end_the_writing_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = FakePatchApi(Rejected(409, "conflict"))
    answers = iter([{"metadata": "no object"}])
    monkeypatch.setattr(api, "get_pod", lambda *_: next(answers))
    writing = Writing(api)
    with writing.running():
        writing.queue.put(of("a"), GOT)
        writing.wait("retried", "written")


@pytest.mark.parametrize("errors", [[], [Unavailable("away")], [Rejected(409, "conflict")]])
def test_an_allocation_that_comes_while_an_older_one_is_written_is_written_too(
    errors: list[Exception],
) -> None:
    api, view = FakePatchApi(*errors), of()
    writing = Writing(api)
    api.go_on.clear()
    with writing.running():
        writing.queue.put(view, LESS)
        assert api.entered.wait(10)
        writing.queue.put(view, GOT)
        api.go_on.set()
        eventually(lambda: writing.queue.pending() == 0, "the newer one is written")
    assert written_cards(api)[-1] == "1"


def test_only_so_many_written_allocations_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 2)
    writing, views = Writing(FakePatchApi()), [of(name) for name in "abc"]
    with writing.running():
        for view in views:
            writing.queue.put(view, GOT)
        writing.wait(*["written"] * 3)
        writing.queue.put(views[2], GOT)
        assert writing.queue.pending() == 0
        writing.queue.put(views[0], GOT)
        writing.wait(*["written"] * 4)
