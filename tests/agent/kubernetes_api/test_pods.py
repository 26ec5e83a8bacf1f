"""The pod cache: list, watch, list again; single look-ups; what does not parse is logged."""

import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from agent.errors import Unavailable
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.pods import PodCache
from contract.allocation import Allocation, Evidence, encode_allocations
from placement.pods import PodInfo
from tests.agent.fakes import NAMES, FakeClock, make_manifest
from tests.agent.threads import CountedStop

RECORD = encode_allocations({"c0": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)})


class PodScene(Api):
    """A cache, and an API server whose lists and watches are scripted; then the cache is stopped.

    ``FETCH`` among them is a look-up of pod ``a``, which gets *fetched*.
    """

    def __init__(
        self,
        *steps: object,
        fetched: Json | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: float = 0.0,
    ) -> None:
        self.steps = list(steps)
        self.fetched = fetched
        self.watched_from: list[str] = []
        self.changes: list[PodInfo] = []
        self.known_at_changes: list[set[str]] = []
        self.cache = PodCache(api=self, node="n1", names=NAMES, clock=clock, jitter=lambda: jitter)
        self.cache.subscribe(self._take)
        self._over = CountedStop(1000)

    def run(self) -> PodCache:
        """Follow all that is scripted."""
        self.cache.run(self._over)
        return self.cache

    def _take(self, info: PodInfo) -> None:
        self.changes.append(info)
        self.known_at_changes.append(uids(self.cache))

    def fetch(self) -> PodInfo | None:
        return self.cache.fetch("default", "a")

    def _next(self) -> object:
        if not self.steps:
            self._over.set()
            raise Unavailable("nothing more")
        step = self.steps.pop(0)
        if step is FETCH:
            self.fetch()
            return self._next()
        if isinstance(step, Exception):
            raise step
        return step

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
        self.watched_from.append(query["resourceVersion"])
        step = self._next()
        assert isinstance(step, list)
        yield from step

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        return self.fetched

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        step = self._next()
        assert isinstance(step, tuple)
        return *step, ""


FETCH = object()


def known(cache: PodCache) -> set[str]:
    return {info.id.name for info in cache.pods()}


def uids(cache: PodCache) -> set[str]:
    return {info.id.uid for info in cache.pods()}


def entry(name: str, uid: str = "", version: str = "1", **annotations: str) -> Json:
    obj = make_manifest(name, (30, 8), uid=uid or f"uid-{name}")
    obj["metadata"]["resourceVersion"] = version
    obj["metadata"]["annotations"] = {
        f"{NAMES.domain}/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return obj


def paused(*steps: object, most: int, jitter: float = 0.0) -> list[float]:
    """Run a cache on a clock that stands still until it has paused so often."""
    stop = CountedStop(most)
    PodScene(*steps, clock=FakeClock(), jitter=jitter).cache.run(stop)
    return stop.waited[:most]


def test_watches_that_end_at_once_are_opened_again_ever_more_slowly() -> None:
    pauses = paused(([], "1"), *[[]] * 9, most=8)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_agents_that_lose_the_api_server_together_do_not_come_back_together() -> None:
    outage = [Unavailable("no response")] * 3
    assert paused(*outage, most=3) == [0.2, 0.4, 0.8]
    assert paused(*outage, most=3, jitter=0.5) == [0.25, 0.5, 1.0]
    too_old: tuple[object, ...] = ([], "3"), Gone("too old")  # which is no storm of lists
    assert paused(*too_old * 4, most=3) == [0.2, 0.4, 0.8]


def test_a_watch_goes_on_from_its_last_bookmark() -> None:
    bookmark: Json = {"metadata": {"resourceVersion": "9"}}
    scene = PodScene(
        ([], "3"),
        [("ADDED", entry("a", version="5")), ("BOOKMARK", bookmark), ("UNKNOWN", bookmark)],
        [("DELETED", entry("a", version="11"))],
        [("ADDED", {"metadata": {"name": "bare", "uid": "u"}})],
    )
    assert known(scene.run()) == {"bare"}
    assert scene.watched_from == ["3", "9", "11", "11"]


@pytest.mark.parametrize("error", [Gone("too old"), Unavailable("cut"), Rejected(403, "no")])
def test_whatever_ends_a_watch_it_is_listed_again(error: Exception) -> None:
    scene = PodScene(([entry("a")], "3"), error, ([entry("b")], "7"), [])
    assert known(scene.run()) == {"b"}
    assert scene.watched_from == ["3", "7", "7"]


def test_a_new_list_notifies_only_of_changes() -> None:
    scene = PodScene(
        ([entry("a"), entry("b")], "3"),
        Gone(""),
        ([entry("a"), entry("b", gpu_allocation=RECORD), entry("c")], "7"),
    )
    scene.run()
    assert [info.id.name for info in scene.changes] == ["a", "b", "b", "c"]


def test_a_successor_stands_beside_its_predecessor_until_that_is_deleted() -> None:
    scene = PodScene(
        ([entry("a", "one")], "3"),
        [("ADDED", entry("a", "two"))],
        [("DELETED", entry("a", "one"))],
    )
    assert uids(scene.run()) == {"two"}
    assert scene.known_at_changes == [{"one"}, {"one", "two"}]


def test_a_malformed_annotation_is_logged_and_not_read_as_zero(
    caplog: pytest.LogCaptureFixture,
) -> None:
    obj = entry("a", predicate_time="1.5e9")
    obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    (view,) = PodScene(([obj], "3")).run().pods()
    assert view.rank[0] == 1_767_225_600_000_000_000  # it stands where it was created
    logged = vars(caplog.records[0])
    assert (logged["msg"], logged["pod"]) == ("annotation ignored", "default/a")
    reason = 'predicate time: Invalid value: "1.5e9": must be unix time in ns, decimal'
    assert logged["reason"] == reason


@pytest.mark.parametrize("spec", [None, {}, {"nodeName": "n2"}])
def test_a_fetched_pod_of_another_node_is_ignored(spec: object) -> None:
    scene = PodScene(fetched=entry("a") | {"spec": spec})
    assert scene.fetch() is None
    assert not scene.cache.pods()


def test_a_fetch_that_finds_another_pod_of_the_name_forgets_the_one_before() -> None:
    scene = PodScene(([entry("a", "one"), entry("b")], "3"), fetched=entry("a", "two"))
    scene.run()
    found = scene.fetch()
    assert found is not None
    assert found.id.uid == "two"
    assert uids(scene.cache) == {"two", "uid-b"}
    assert scene.changes[-1] is found


def test_a_fetch_forgets_the_one_before_also_if_a_list_has_added_the_other_pod_already() -> None:
    """A list beside the watch removes no pod."""
    two = entry("a", "two")
    scene = PodScene(([entry("a", "one")], "3"), ([two], "4"), fetched=two)
    scene.cache.collection.list()
    scene.cache.refresh(within=1)
    scene.fetch()
    assert uids(scene.cache) == {"two"}


def test_events_of_a_replaced_pod_from_a_watch_that_lags_are_ignored() -> None:
    """Until the watch shows its deletion."""
    events = [
        ("MODIFIED", entry("a", "one", gpu_allocation=RECORD)),
        ("DELETED", entry("a", "one")),
        ("MODIFIED", entry("a", "two", gpu_allocation=RECORD)),
    ]
    scene = PodScene(([entry("a", "one")], "3"), FETCH, events, fetched=entry("a", "two"))
    assert uids(scene.run()) == {"two"}
    seen = [(info.id.uid, bool(info.annotated)) for info in scene.changes]
    assert seen == [("one", False), ("two", False), ("two", True)]


def test_a_pod_that_a_watch_reports_after_its_successor_was_fetched_is_passed_over() -> None:
    one, two = entry("a", "one"), entry("a", "two")
    events = [("ADDED", one), ("DELETED", one), ("ADDED", two)]
    scene = PodScene(([entry("b")], "3"), FETCH, events, fetched=two)
    scene.run()
    assert scene.known_at_changes == [{"uid-b"}, {"uid-b", "two"}]
    assert scene.cache.uids_seen(("default", "a"))[:2] == ["one", "two"]


def test_a_late_response_does_not_bring_back_a_deleted_pod() -> None:
    scene = PodScene(([entry("a")], "3"), [("DELETED", entry("a"))], FETCH, fetched=entry("a"))
    assert scene.run().pods() == ()


def test_a_new_list_overrides_a_fetched_pod() -> None:
    """A list at version 0 may lag as well: then the watch decides."""
    one = [entry("a", "one")]
    scene = PodScene((one, "3"), FETCH, Gone(""), (one, "7"), fetched=entry("a", "two"))
    assert uids(scene.run()) == {"one"}


def test_views_are_the_same_object_until_something_changes() -> None:
    """Nearly every call of the kubelet finds them unchanged, and reads nothing again."""
    scene = PodScene(([entry("a")], "3"), fetched=entry("a", version="4"))
    cache = scene.run()
    first = cache.pods()
    cache.collection.apply("MODIFIED", entry("a", version="4"))  # a field that is not read
    assert scene.fetch() == first[0]
    assert cache.pods() is first
    cache.collection.apply("MODIFIED", entry("a", gpu_allocation=RECORD))
    assert cache.pods() is not first
    assert scene.changes == [*first, *cache.pods()]
    cache.collection.apply("DELETED", entry("a"))
    assert cache.pods() == ()
    assert cache.pods() is cache.pods()


def test_a_pod_that_cannot_be_handled_does_not_keep_others_from_being_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception would end the thread, and with it the agent."""
    broken = {"metadata": {"name": "b", "namespace": "default", "annotations": 7}}
    events = [("ADDED", broken), ("ADDED", entry("c")), ("ADDED", entry("d"))]
    scene = PodScene(([entry("a"), broken], "7"), events)

    def take(view: PodInfo) -> None:
        if view.id.name in {"a", "c"}:
            raise KeyError("GPU-LOST")

    scene.cache.subscribe(take)
    assert known(scene.run()) == {"a", "c", "d"}
    passed_over = [each for each in caplog.records if each.msg == "object passed over"]
    names = [vars(each)["object"] for each in passed_over]
    assert names == ["default/b", "default/a", "default/b", "default/c"]


def test_a_list_beside_the_watch_adds_unwatched_pods_and_changes_no_other() -> None:
    scene = PodScene(([entry("a")], "3"), [])
    cache = scene.run()
    scene.steps = [([entry("b"), entry("a", gpu_allocation=RECORD)], "9"), ([], "10")]
    for _ in range(2):  # only the watch shows deletions
        cache.refresh(within=1)
        shown = {view.id.name: bool(view.annotated) for view in cache.pods()}
        assert shown == {"a": False, "b": False}


@pytest.mark.parametrize("error", [Gone("too old"), Rejected(403, "no RBAC rule for list")])
def test_a_list_beside_the_watch_that_is_refused_is_an_outage(error: Exception) -> None:
    with pytest.raises(Unavailable, match=f"^list of pods: {error}$"):
        PodScene(error).cache.refresh(within=1)


def test_the_watch_returns_the_pods_of_a_name_in_order() -> None:
    """An empty UID stands for pods before the first list, which are not all known."""
    clock = FakeClock()
    cache = PodScene(([entry("listed", "u-0")], "3"), clock=clock).cache
    cache.collection.list()
    many = [("many", f"u-{number}") for number in range(10)]
    came = [("listed", "u-1"), ("new", "u"), ("new", "u"), ("two", "b"), ("two", "a")]
    for name, uid in (*came, *many):
        cache.collection.apply("ADDED", entry(name, uid))
    cache.collection.apply("DELETED", entry("two", "b"))
    names = ("listed", "new", "two", "none")
    assert [cache.uids_seen(("default", name))[-1] for name in names] == [""] * 4
    clock.now += 5.0  # the kubelet knows by now of pods deleted by force before
    uids = [cache.uids_seen(("default", name)) for name in names]
    assert uids == [["", "u-0", "u-1"], ["u"], ["b", "a"], []]
    assert cache.uids_seen(("default", "many")) == ["", *(f"u-{number}" for number in range(3, 10))]
