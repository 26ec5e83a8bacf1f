"""Binding: one POST with the cards chosen, and its result if the response is lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from contract.names import Names
from scheduler.binding import Binder
from scheduler.cluster import SchedulerApi
from scheduler.errors import BindError
from scheduler.protocol import BindingArgs
from scheduler.state import State
from tests.agent.builders import raising
from tests.placement.cluster.builders import Json, hint, make_node, make_pod
from tests.scheduler.states import Amounts, free_amounts

NAMES = Names()
FULL = [(100, 32), (100, 32)]


class FakeApi(SchedulerApi):
    """An API server that binds, unless the next step says otherwise."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.bindings: list[Json] = []
        self.before: list[Callable[[], Awaitable[None] | None]] = []
        self.after: list[Exception] = []
        self.failing_gets = 0
        self.gets = 0

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        self.gets += 1
        if self.failing_gets:
            self.failing_gets -= 1
            raise Unavailable("API server: no response")
        return self.pods.get(name)

    async def bind(self, namespace: str, name: str, binding: Json) -> None:
        self.bindings.append(binding)
        if self.before:
            waited = self.before.pop(0)()
            if waited is not None:
                await waited
        pod = self.pods[name]
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"]["annotations"] |= binding["metadata"]["annotations"]
        if self.after:
            raise self.after.pop(0)


class Held:
    """A step before a Binding: it waits until the test frees it."""

    def __init__(self) -> None:
        self.begun, self.freed = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.begun.set()
        await self.freed.wait()


class Stage:
    def __init__(self) -> None:
        self.state = State(NAMES)
        for name in ("n1", "n2"):
            self.state.put_node(make_node(name, 2))
        self.api = FakeApi()
        self.results: list[str] = []
        self.binder = Binder(
            self.state,
            self.api,
            on_result=self.results.append,
            wait=lambda _: asyncio.sleep(0),
        )

    def create(
        self, name: str, *limits: tuple[int, int], seen: bool = True, **more: object
    ) -> None:
        self.api.pods[name] = make_pod(name, *limits, **more)  # type: ignore[arg-type]
        if seen:
            self.state.put_pod(self.api.pods[name])

    def bind(self, name: str = "a", node: str = "n1") -> str:
        return asyncio.run(self.send(name, node))

    async def send(self, name: str = "a", node: str = "n1") -> str:
        return await self.binder.bind(BindingArgs(name, "default", f"u-{name}", node))

    def refused(self, node: str = "n1") -> str:
        with pytest.raises(BindError) as error:
            self.bind(node=node)
        return str(error.value)

    def free(self, node: str = "n1") -> Amounts | None:
        return free_amounts(self.state, node)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_binding_names_pod_uid_node_and_the_cards_of_each_container(stage: Stage) -> None:
    stage.create("b", (40, 4), node="n1", annotations=hint("1"))
    stage.create("a", (30, 4), (100, 2), sidecars=[(10, 1)])
    assert stage.bind() == "s0: 1, c0: 1, c1: 0"
    assert stage.api.bindings == [
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": "a",
                "namespace": "default",
                "uid": "u-a",
                "annotations": hint("1", "0", inits=["1"]),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        }
    ]
    assert stage.results == ["bound"]
    assert stage.free() == [(0, 30), (20, 23)]
    stage.state.put_pod(stage.api.pods["a"])
    assert (stage.state.assumed, stage.free()) == (0, [(0, 30), (20, 23)])


def test_a_pod_that_does_not_fit_is_refused_with_a_reason_and_not_bound(stage: Stage) -> None:
    stage.create("a", (60, 4))
    for index in ("0", "1"):
        stage.create(f"b{index}", (50, 4), node="n1", annotations=hint(index))
    assert stage.refused() == "node n1: no card has 60 cores and 4 blocks free"
    assert stage.refused(node="n9") == "node n9 is unknown"
    assert (stage.api.bindings, stage.results) == ([], ["refused", "refused"])
    assert stage.bind(node="n2") == "c0: 0"


def test_a_pod_that_the_watch_has_not_shown_is_read_from_the_api_server(stage: Stage) -> None:
    stage.create("a", (30, 4), seen=False)
    assert stage.bind() == "c0: 0"
    assert stage.free() == [(70, 28), (100, 32)]
    stage.create("b", seen=False)
    assert stage.bind("b") == "", "without GPUs it is bound without cards"
    assert stage.api.bindings[-1]["metadata"]["annotations"] == {}


Change = Callable[[FakeApi], None]
GONE = "the pod with UID u-a is gone"


def bound_to_n2(api: FakeApi) -> None:
    api.pods["a"]["spec"]["nodeName"] = "n2"


def replaced(api: FakeApi) -> None:
    api.pods["a"]["metadata"]["uid"] = "u-2"


@pytest.mark.parametrize(
    ("change", "text", "result"),
    [
        (lambda api: api.pods.clear(), GONE, "gone"),
        (replaced, GONE, "gone"),
        (lambda api: api.pods["a"].update(status={"phase": "Failed"}), "the pod has ended", "gone"),
        (bound_to_n2, "the pod is already bound to n2", "elsewhere"),
        (
            lambda api: setattr(api, "failing_gets", 1),
            "the pod cannot be read: API server: no response",
            "unavailable",
        ),
    ],
)
def test_a_pod_that_cannot_be_bound_is_not_tried(
    stage: Stage, change: Change, text: str, result: str
) -> None:
    stage.create("a", (30, 4), seen=False)
    change(stage.api)
    assert stage.refused() == text
    assert (stage.api.bindings, stage.results, stage.free()) == ([], [result], FULL)


def test_a_pod_already_bound_to_this_node_counts_as_bound(stage: Stage) -> None:
    """kube-scheduler's own request ran out of time, and it sends it again."""
    stage.create("a", (30, 4), seen=False, node="n1")
    assert stage.bind() == "already bound to this node"
    assert (stage.api.bindings, stage.results) == ([], ["found"])


@pytest.mark.parametrize("status", [403, 404])
def test_a_binding_that_is_refused_frees_its_cards(stage: Stage, status: int) -> None:
    stage.create("a", (30, 4))
    stage.api.before = [raising(Rejected(status, "policy says no"))]
    assert stage.refused() == "the API server rejects it: policy says no"
    assert (stage.free(), stage.results, stage.state.assumed) == (FULL, ["rejected"], 0)
    assert stage.bind() == "c0: 0"


@pytest.mark.parametrize("error", [Unavailable("API server: 504"), Gone("what")])
def test_a_binding_that_succeeded_although_its_response_was_lost_is_found(
    stage: Stage, error: Exception
) -> None:
    stage.create("a", (30, 4))
    stage.api.after, stage.api.failing_gets = [error], 1
    assert stage.bind() == "c0: 0"
    assert (len(stage.api.bindings), stage.results) == (1, ["found"])
    assert stage.free() == [(70, 28), (100, 32)]


def test_a_binding_with_unknown_result_keeps_its_cards(stage: Stage) -> None:
    stage.create("a", (30, 4))
    stage.api.before = [raising(Unavailable("read timed out"))]
    text = "it is unknown whether the pod was bound: read timed out"
    assert stage.refused() == text
    assert (stage.api.gets, stage.results) == (3, ["doubtful"])
    assert stage.free() == [(70, 28), (100, 32)]
    stage.api.before, stage.api.failing_gets = [raising(Unavailable("read timed out"))], 9
    assert stage.refused() == text
    assert stage.free() == [(70, 28), (100, 32)]
    assert len(stage.api.bindings) == 2  # once for each request


def test_an_assumed_pod_that_was_bound_stays_on_its_node(stage: Stage) -> None:
    """The first Binding took effect late; the second one meets a conflict."""
    stage.create("a", (30, 4))
    stage.api.before = [raising(Unavailable("read timed out"))]
    stage.refused()
    stage.api.pods["a"]["spec"]["nodeName"] = "n1"
    stage.api.before = [raising(Rejected(409, "already assigned to n1"))]
    assert stage.refused(node="n2") == "the pod is bound to n1: already assigned to n1"
    assert (stage.free("n1"), stage.free("n2")) == ([(70, 28), (100, 32)], FULL)


@pytest.mark.parametrize(
    ("change", "text", "result"),
    [
        (bound_to_n2, "the pod is bound to n2: conflict", "elsewhere"),
        (lambda api: None, "the API server rejects it: conflict", "rejected"),
        (lambda api: api.pods.clear(), f"{GONE}: conflict", "gone"),
        (replaced, f"{GONE}: conflict", "gone"),
    ],
)
def test_a_conflict_is_examined(stage: Stage, change: Change, text: str, result: str) -> None:
    stage.create("a", (30, 4))

    def meanwhile() -> None:
        change(stage.api)
        raise Rejected(409, "conflict")

    stage.api.before = [meanwhile]
    assert stage.refused() == text
    assert (stage.free(), stage.results, stage.state.assumed) == (FULL, [result], 0)


def test_a_conflict_with_a_binding_to_the_same_node_is_none(stage: Stage) -> None:
    stage.create("a", (30, 4))

    def meanwhile() -> None:
        stage.api.pods["a"]["spec"]["nodeName"] = "n1"
        raise Rejected(409, "already assigned")

    stage.api.before = [meanwhile]
    assert stage.bind() == "c0: 0"


def test_a_pod_is_bound_once_at_a_time(stage: Stage) -> None:
    stage.create("a", (30, 4))

    async def meanwhile() -> None:
        with pytest.raises(BindError, match=r"^a binding of this pod is in progress$"):
            await stage.send()

    stage.api.before = [meanwhile]
    assert stage.bind() == "c0: 0"
    assert stage.results == ["busy", "bound"]


@pytest.mark.parametrize(
    ("function", "cores", "text"),
    [
        ("choice.plan_pod", 30, "the search for cards was given up"),
        ("binding.check", 300, "no card fits 300 cores and 4 memory blocks"),
    ],
)
def test_a_pod_without_a_plan_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, function: str, cores: int, text: str
) -> None:
    """The quick search and the plan agree; should they not, the pod is not bound."""
    monkeypatch.setattr(f"scheduler.{function}", lambda *_args, **_given: None)
    stage.create("a", (cores, 4))
    assert stage.refused().startswith(f"node n1: {text}")


def test_no_request_waits_for_room_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for long is given up by kube-scheduler."""
    monkeypatch.setattr("scheduler.binding._LONGEST_WAIT_SECONDS", 0.01)
    stage = Stage()
    stage.binder.most = 1

    async def stuck() -> None:
        stage.create("a", (30, 4))
        held = Held()
        stage.api.before = [held]
        bind = asyncio.create_task(stage.send("a"))
        await held.begun.wait()
        await stage.binder.wait_for_room()
        assert stage.binder.is_full
        held.freed.set()
        await bind

    asyncio.run(stuck())
