"""The queue of allocations: what is written, when again, and when not."""

import json
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import Unavailable
from agent.kubernetes_api import annotation_writer as module
from agent.kubernetes_api.annotation_writer import PatchQueue, allocation_patch
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from contract.allocation import Allocation, Evidence
from placement.pods import PodInfo, read_pod
from tests.agent.builders import patient
from tests.agent.fakes import DEADLINE_S, NAMES, FakeClock, eventually
from tests.agent.threads import running
from tests.examples import share
from tests.in_memory import pods as in_memory
from tests.in_memory.pods import Container, gpu, init

INDICES = {"GPU-0": 0, "GPU-1": 1}
GOT = {"main": Allocation(("GPU-1",), 30, 8, Evidence.WITNESS)}
LESS = {"main": Allocation(("GPU-0",), 30, 8, Evidence.ORDER)}


def make_pod(name: str, *containers: Container) -> PodInfo:
    """A pod as the API server shows it."""
    return read_pod(in_memory.make_pod(name, *containers).manifest(), NAMES)


class FakePatchApi(Api):
    """An API server with given failures; after them it accepts everything."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.patches: list[tuple[str, Json]] = []
        self.uids: dict[str, str] = {}
        self.away = False
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def patch_pod(self, namespace: str, name: str, patch: Json) -> None:
        self.entered.set()
        assert self.go_on.wait(DEADLINE_S)
        if self.errors:
            raise self.errors.pop(0)
        self.patches.append((f"{namespace}/{name}", patch))

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        if self.away:
            raise Unavailable("away")
        uid = self.uids.get(name)
        return None if uid is None else {"metadata": {"uid": uid}}


class Writing:
    """A queue, and what it said of its work."""

    def __init__(self, api: FakePatchApi) -> None:
        self.results: list[str] = []
        self.clock = FakeClock()
        self.queue = PatchQueue(
            api=api,
            names=NAMES,
            indices=INDICES,
            on_result=self.results.append,
            clock=lambda: time.monotonic() + self.clock.now,
        )

    def running(self) -> AbstractContextManager[None]:
        return running(self.queue.run, self.queue.stop)

    def wait(self, *results: str) -> None:
        eventually(lambda: self.results == list(results), f"{results}, not {self.results}")


def of(name: str = "a") -> PodInfo:
    return make_pod(name, gpu(30, 8))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", (0.01, 0.04))


def test_a_recorded_init_container_stays_recorded_when_only_the_others_are_reported() -> None:
    """Its places are taken back before the watch shows its annotation."""
    api, view = FakePatchApi(), make_pod("a", init(100, 0), gpu(30, 8))
    writing = Writing(api)
    served = {"init": Allocation(("GPU-0",), 100, 0, Evidence.TICKET)}
    with writing.running():
        writing.queue.put(view, served)
        writing.wait("written")
        writing.queue.put(view, GOT)
        writing.wait("written", "written")
    written = api.patches[-1][1]["metadata"]["annotations"][NAMES.gpu_allocation]
    assert json.loads(written).keys() == {"init", "main"}


def test_a_patch_carries_the_uid_the_record_and_the_indices_of_each_container() -> None:
    view = make_pod("a", init(100, 0), init(100, 0, "next"), gpu(200, 9, "two"))
    allocations = {
        "next": Allocation(("GPU-0",), 100, 0, Evidence.TICKET),
        "two": Allocation(("GPU-0", "GPU-1"), 200, 9, Evidence.WITNESS),
    }
    patch = allocation_patch(view, allocations, names=NAMES, indices=INDICES)
    annotations = patch["metadata"].pop("annotations")
    assert patch == {"metadata": {"uid": view.id.uid}}
    assert json.loads(annotations.pop("tencent.com/gpu-allocation")) == {
        "next": {"cards": ["GPU-0"], "cores": 100, "memoryBlocks": 0, "evidence": "ticket"},
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
        "tencent.com/predicate-gpu-idx-init-1": "0",
    }


MAY_PASS = [400, 401, 403, 408, 413, 422, 423]
"""Permissions may come after the agent, and a policy may be corrected."""
CONFLICT = Rejected(409, "the object has been modified")


@pytest.mark.parametrize(
    ("errors", "now_there", "results"),
    [
        ([Gone("expired")], "", "dropped"),
        # The API server may answer 404 from a cache that lags.
        ([Rejected(404, "no such pod")], "", "dropped"),
        ([KeyError("unforeseen")], "", "retried written"),
        ([Unavailable("away")] * 2, "", "retried retried written"),
        ([Rejected(each, "no") for each in MAY_PASS], "", "retried " * len(MAY_PASS) + "written"),
        ([CONFLICT], "the same", "retried written"),
        ([CONFLICT], "not to be told", "retried written"),
        ([CONFLICT], "another", "dropped"),
    ],
)
def test_what_fails_is_tried_again_unless_its_pod_is_gone_and_holds_no_other_up(
    errors: list[Exception], now_there: str, results: str
) -> None:
    api, view = FakePatchApi(*errors), of("a")
    if now_there:
        api.uids["a"] = view.id.uid if now_there == "the same" else "another UID"
    api.away = now_there == "not to be told"
    writing = Writing(api)
    writing.queue.put(view, GOT)
    writing.queue.put(of("b"), GOT)
    with writing.running():
        expected = sorted([*results.split(), "written"])
        eventually(lambda: sorted(writing.results) == expected, f"{expected}, not {results}")
        # What was dropped is not taken for written.
        writing.queue.put(view, GOT)
        eventually(lambda: {name for name, _ in api.patches} == {"default/a", "default/b"}, "both")
    assert len(api.patches) == 2


@pytest.mark.parametrize(
    ("kinds", "served", "complete"),
    [
        ("i 1 2", "i 1", False),
        ("i 1 2", "1 2", True),  # what the init container got nobody can tell any more (K4)
        ("i 1 2", "i 1 2", True),
        ("i i2", "i", False),
        ("i i2", "i i2", True),
    ],
)
def test_only_a_complete_annotation_marks_the_pod_as_assigned(
    kinds: str, served: str, complete: bool
) -> None:
    view = make_pod("a", *((init if "i" in n else gpu)(30, 8, n) for n in kinds.split()))
    allocations = {name: Allocation(("GPU-0",), 30, 8, Evidence.TICKET) for name in served.split()}
    patch = allocation_patch(view, allocations, names=NAMES, indices=INDICES)
    assert ("tencent.com/gpu-assigned" in patch["metadata"]["annotations"]) is complete


def test_the_same_allocation_is_written_once_unless_somebody_has_taken_it_away() -> None:
    api, view = FakePatchApi(), of()
    writing = Writing(api)
    writing.queue.put(view, GOT)
    writing.queue.put(view, GOT)
    assert writing.queue.pending() == 1
    with writing.running():
        writing.wait("written")
        writing.queue.put(view, GOT)  # the watch lags
        assert writing.queue.pending() == 0
        writing.queue.put(view, LESS)
        writing.wait("written", "written")
        writing.clock.now += 61
        writing.queue.put(view, LESS)
        writing.wait(*["written"] * 3)
    assert written_cards(api) == ["1", "0", "0"]


def test_evidence_that_is_only_newer_does_not_replace_what_is_not_written_yet() -> None:
    """Once another pod is served everything is from the kubelet, and the watch may lag."""
    api, view = FakePatchApi(), of()
    writing = Writing(api)
    writing.queue.put(view, GOT)
    writing.queue.put(view, {"main": replace(GOT["main"], evidence=Evidence.RECORD)})
    writing.queue.write_next()
    [(_, patch)] = api.patches
    assert "witness" in patch["metadata"]["annotations"][NAMES.gpu_allocation]


def written_cards(api: FakePatchApi) -> list[str]:
    """The card's index in each patch."""
    index = NAMES.predicate_gpu_idx(0)
    return [patch["metadata"]["annotations"][index] for _, patch in api.patches]


_puts = st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=6)


@settings(
    patient, max_examples=share(20), suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the patch is the same for all
@given(_puts)
def test_what_is_written_last_is_what_was_put_last(puts: list[tuple[bool, int]]) -> None:
    """A correction may replace what waits, and be taken back while it waits."""
    api, view = FakePatchApi(), of()
    writing = Writing(api)
    with writing.running():
        for got, failures in puts:
            api.errors += [Unavailable("away")] * failures
            writing.queue.put(view, GOT if got else LESS)
        eventually(lambda: writing.queue.pending() == 0, "all is written")
    assert written_cards(api)[-1] == ("1" if puts[-1][0] else "0")


@pytest.mark.parametrize("errors", [[], [Unavailable("away")], [Rejected(409, "conflict")]])
def test_an_allocation_that_comes_while_an_older_one_is_written_is_written_too(
    errors: list[Exception],
) -> None:
    api, view = FakePatchApi(*errors), of()
    writing = Writing(api)
    api.go_on.clear()
    with writing.running():
        writing.queue.put(view, LESS)
        assert api.entered.wait(DEADLINE_S)
        writing.queue.put(view, GOT)
        api.go_on.set()
        eventually(lambda: writing.queue.pending() == 0, "the newer one is written")
    assert written_cards(api)[-1] == "1"
