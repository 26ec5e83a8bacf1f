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


class FakePodApi(Api):
    """Each list and watch is scripted; after the last one the cache is stopped.

    A step that can be called is called before the next one.
    """

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)
        self.pods: dict[tuple[str, str], Json] = {}
        self.gets: list[tuple[str, str]] = []
        self.watched_from: list[str] = []
        self.over = CountedStop(1000)

    def _next(self) -> object:
        if not self.steps:
            self.over.set()
            raise Unavailable("nothing more")
        step = self.steps.pop(0)
        if callable(step):
            step()
            return self._next()
        if isinstance(step, Exception):
            raise step
        return step

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
        self.watched_from.append(query["resourceVersion"])
        step = self._next()
        assert isinstance(step, list)
        for each in step:
            if isinstance(each, Exception):
                raise each
            yield each

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        self.gets.append((namespace, name))
        return self.pods.get((namespace, name))

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        step = self._next()
        assert isinstance(step, tuple)
        return *step, ""


def cache_of(api: FakePodApi, clock: Callable[[], float] = time.monotonic) -> PodCache:
    return PodCache(api=api, node="n1", names=NAMES, clock=clock)


def followed(api: FakePodApi) -> PodCache:
    cache = cache_of(api)
    cache.run(api.over)
    return cache


def known(cache: PodCache) -> set[str]:
    return {info.id.name for info in cache.pods()}


def uids(cache: PodCache) -> set[str]:
    return {info.id.uid for info in cache.pods()}


def uids_at_changes(cache: PodCache) -> list[set[str]]:
    seen: list[set[str]] = []
    cache.subscribe(lambda _info: seen.append(uids(cache)))
    return seen


def entry(name: str, uid: str = "", version: str = "1", **annotations: str) -> Json:
    obj = make_manifest(name, (30, 8), uid=uid or f"uid-{name}")
    obj["metadata"]["resourceVersion"] = version
    obj["metadata"]["annotations"] = {
        f"{NAMES.domain}/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return obj


def paused(api: FakePodApi, most: int, jitter: float = 0.0) -> list[float]:
    """Run a cache on a clock that stands still until it has paused so often."""
    stop = CountedStop(most)
    PodCache(api=api, node="n1", names=NAMES, clock=FakeClock(), jitter=lambda: jitter).run(stop)
    return stop.waited[:most]


def test_watches_that_end_at_once_are_opened_again_ever_more_slowly() -> None:
    api = FakePodApi(([], "1"), *[[]] * 9)
    assert paused(api, 8) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert len(api.watched_from) == 8


def test_agents_that_lose_the_api_server_together_do_not_come_back_together() -> None:
    outage = [Unavailable("no response")] * 3
    assert paused(FakePodApi(*outage), 3, jitter=0.0) == [0.2, 0.4, 0.8]
    assert paused(FakePodApi(*outage), 3, jitter=0.5) == [0.25, 0.5, 1.0]
    ends_at_once: list[object] = [([], "3"), [Gone("too old")]] * 4  # which is no storm of lists
    assert paused(FakePodApi(*ends_at_once), 3) == [0.2, 0.4, 0.8]


def test_a_watch_goes_on_from_its_last_bookmark() -> None:
    bookmark: Json = {"metadata": {"resourceVersion": "9"}}
    api = FakePodApi(
        ([], "3"),
        [("ADDED", entry("a", version="5")), ("BOOKMARK", bookmark), ("UNKNOWN", bookmark)],
        [("DELETED", entry("a", version="11"))],
        [("ADDED", {"metadata": {"name": "bare", "uid": "u"}})],
    )
    assert known(followed(api)) == {"bare"}
    assert api.watched_from == ["3", "9", "11", "11"]


@pytest.mark.parametrize("error", [Gone("too old"), Unavailable("cut"), Rejected(403, "no")])
def test_whatever_ends_a_watch_it_is_listed_again(error: Exception) -> None:
    api = FakePodApi(([entry("a")], "3"), [error], ([entry("b")], "7"), [])
    assert known(followed(api)) == {"b"}
    assert api.watched_from == ["3", "7", "7"]


def test_a_new_list_notifies_only_of_changes() -> None:
    api = FakePodApi(
        ([entry("a"), entry("b")], "3"),
        [Gone("")],
        ([entry("a"), entry("b", gpu_allocation=RECORD), entry("c")], "7"),
    )
    cache = cache_of(api)
    seen: list[str] = []
    cache.subscribe(lambda info: seen.append(info.id.name))
    cache.run(api.over)
    assert seen == ["a", "b", "b", "c"]


def test_a_successor_stands_beside_its_predecessor_until_that_is_deleted() -> None:
    api = FakePodApi(
        ([entry("a", "one")], "3"),
        [("ADDED", entry("a", "two"))],
        [("DELETED", entry("a", "one"))],
    )
    cache = cache_of(api)
    seen = uids_at_changes(cache)
    cache.run(api.over)
    assert seen == [{"one"}, {"one", "two"}]
    assert uids(cache) == {"two"}


def test_a_malformed_annotation_is_logged_and_not_read_as_zero(
    caplog: pytest.LogCaptureFixture,
) -> None:
    obj = entry("a", predicate_time="1.5e9")
    obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    (view,) = followed(FakePodApi(([obj], "3"))).pods()
    assert view.rank[0] == 1_767_225_600_000_000_000  # it stands where it was created
    logged = vars(caplog.records[0])
    assert (logged["msg"], logged["pod"]) == ("annotation ignored", "default/a")
    reason = 'predicate time: Invalid value: "1.5e9": must be unix time in ns, decimal'
    assert logged["reason"] == reason


@pytest.mark.parametrize("spec", [None, {}, {"nodeName": "n2"}])
def test_a_fetched_pod_of_another_node_is_ignored(spec: object) -> None:
    api = FakePodApi()
    api.pods["default", "a"] = entry("a") | {"spec": spec}
    cache = cache_of(api)
    assert cache.fetch("default", "a") is None
    assert not cache.pods()


# --- another pod of the same name ---------------------------------------------


def test_a_fetch_that_finds_another_pod_of_the_name_forgets_the_one_before() -> None:
    api = FakePodApi(([entry("a", "one"), entry("b")], "3"))
    cache = followed(api)
    api.pods["default", "a"] = entry("a", "two")
    seen: list[str] = []
    cache.subscribe(lambda info: seen.append(info.id.uid))
    found = cache.fetch("default", "a")
    assert found is not None
    assert found.id.uid == "two"
    assert uids(cache) == {"two", "uid-b"}
    assert seen == ["two"]


def test_a_fetch_forgets_the_one_before_also_if_a_list_has_added_the_other_pod_already() -> None:
    """A list beside the watch removes no pod."""
    api = FakePodApi(([entry("a", "one")], "3"), ([entry("a", "two")], "4"))
    api.pods["default", "a"] = entry("a", "two")
    cache = cache_of(api)
    cache.collection.list()
    cache.refresh(within=1)
    cache.fetch("default", "a")
    assert uids(cache) == {"two"}


def test_events_of_a_replaced_pod_from_a_watch_that_lags_are_ignored() -> None:
    """Until the watch shows its deletion."""
    api = FakePodApi(
        ([entry("a", "one")], "3"),
        [
            ("MODIFIED", entry("a", "one", gpu_allocation=RECORD)),
            ("DELETED", entry("a", "one")),
            ("MODIFIED", entry("a", "two", gpu_allocation=RECORD)),
        ],
    )
    api.pods["default", "a"] = entry("a", "two")
    cache = cache_of(api)
    api.steps.insert(1, lambda: cache.fetch("default", "a"))
    seen: list[tuple[str, bool]] = []
    cache.subscribe(lambda info: seen.append((info.id.uid, bool(info.annotated))))
    cache.run(api.over)
    assert seen == [("one", False), ("two", False), ("two", True)]
    assert uids(cache) == {"two"}


def test_a_pod_that_a_watch_reports_after_its_successor_was_fetched_is_passed_over() -> None:
    one, two = entry("a", "one"), entry("a", "two")
    events = [("ADDED", one), ("DELETED", one), ("ADDED", two)]
    api = FakePodApi(([entry("b")], "3"), events)
    api.pods["default", "a"] = two
    cache = cache_of(api)
    api.steps.insert(1, lambda: cache.fetch("default", "a"))
    seen = uids_at_changes(cache)
    cache.run(api.over)
    assert seen == [{"uid-b"}, {"uid-b", "two"}]
    assert cache.uids_seen(("default", "a"))[:2] == ["one", "two"]


def test_a_late_response_does_not_bring_back_a_deleted_pod() -> None:
    api = FakePodApi(([entry("a")], "3"), [("DELETED", entry("a"))])
    api.pods["default", "a"] = entry("a")
    cache = followed(api)
    cache.fetch("default", "a")
    assert cache.pods() == ()


def test_a_new_list_overrides_a_fetched_pod() -> None:
    """A list at version 0 may lag as well: then the watch decides."""
    api = FakePodApi(([entry("a", "one")], "3"), [Gone("")], ([entry("a", "one")], "7"))
    api.pods["default", "a"] = entry("a", "two")
    cache = cache_of(api)
    api.steps.insert(1, lambda: cache.fetch("default", "a"))
    cache.run(api.over)
    assert uids(cache) == {"one"}


def test_views_are_the_same_object_until_something_changes() -> None:
    """Nearly every call of the kubelet finds them unchanged, and reads nothing again."""
    api = FakePodApi(([entry("a")], "3"))
    api.pods["default", "a"] = entry("a", version="4")
    cache, reported = cache_of(api), list[object]()
    cache.subscribe(lambda _view: reported.append(cache.pods()))
    cache.run(api.over)
    first = cache.pods()
    cache.collection.apply(
        "MODIFIED", entry("a", version="4")
    )  # a field that is not read has changed
    assert cache.fetch("default", "a") == first[0]
    assert cache.pods() is first
    cache.collection.apply("MODIFIED", entry("a", gpu_allocation=RECORD))
    second = cache.pods()
    assert second is not first
    assert reported == [first, second]
    cache.collection.apply("DELETED", entry("a"))
    assert cache.pods() == ()
    assert cache.pods() is cache.pods()


def test_a_pod_that_cannot_be_handled_does_not_keep_others_from_being_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception would end the thread, and with it the agent."""
    broken = {"metadata": {"name": "b", "namespace": "default", "annotations": 7}}
    api = FakePodApi(
        ([entry("a"), broken], "7"),
        [("ADDED", broken), ("ADDED", entry("c")), ("ADDED", entry("d"))],
    )
    cache = cache_of(api)

    def take(view: PodInfo) -> None:
        if view.id.name in {"a", "c"}:
            raise KeyError("GPU-LOST")

    cache.subscribe(take)
    cache.run(api.over)
    assert known(cache) == {"a", "c", "d"}
    passed_over = [each for each in caplog.records if each.msg == "object passed over"]
    names = [vars(each)["object"] for each in passed_over]
    assert names == ["default/b", "default/a", "default/b", "default/c"]


# --- for a call that cannot wait for the watch ---------------------------------------------


def test_a_list_beside_the_watch_adds_unwatched_pods_and_changes_no_other() -> None:
    api = FakePodApi(([entry("a")], "3"), [])
    cache = followed(api)
    api.steps = [([entry("b"), entry("a", gpu_allocation=RECORD)], "9"), ([], "10")]
    for _ in range(2):  # only the watch shows deletions
        cache.refresh(within=1)
        shown = {view.id.name: bool(view.annotated) for view in cache.pods()}
        assert shown == {"a": False, "b": False}


@pytest.mark.parametrize("error", [Gone("too old"), Rejected(403, "no RBAC rule for list")])
def test_a_list_beside_the_watch_that_is_refused_is_an_outage(error: Exception) -> None:
    with pytest.raises(Unavailable, match=f"^list of pods: {error}$"):
        cache_of(FakePodApi(error)).refresh(within=1)


def test_the_watch_returns_the_pods_of_a_name_in_order() -> None:
    """An empty UID stands for pods before the first list, which are not all known."""
    clock = FakeClock()
    cache = cache_of(FakePodApi(([entry("listed", "u-0")], "3")), clock)
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
