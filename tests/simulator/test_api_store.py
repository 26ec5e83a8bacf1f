from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.api.errors import StatusError
from simulator.api.resources import PODS, ApiResource, Json
from simulator.api.store import ObjectStore
from simulator.api.watching import line_of
from tests.examples import share


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def new_store(clock: Clock | None = None, *, history: int = 100, seed: int = 0) -> ObjectStore:
    return ObjectStore(Random(seed), clock=clock or Clock(), history=history)


def named(name: str, namespace: str = "default", **fields: Any) -> Json:
    return {"metadata": {"name": name, "namespace": namespace}, **fields}


def version(obj: Json) -> int:
    return int(obj["metadata"]["resourceVersion"])


def test_a_write_based_on_an_older_version_is_refused() -> None:
    store = new_store()
    first = store.create(PODS, named("p"))
    store.update(PODS, {**first, "spec": 1}, based_on=first)
    with pytest.raises(StatusError) as raised:
        store.update(PODS, {**first, "spec": 2}, based_on=first)
    assert raised.value.code == 409
    assert raised.value.message == (
        'Operation cannot be fulfilled on pods "p": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


# Random histories: (verb, name, value)
_OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["create", "update", "update", "delete"]),
        st.sampled_from("abc"),
        st.integers(0, 2),
    ),
    max_size=40,
)


def run(
    store: ObjectStore, operations: list[tuple[str, str, int]], resource: ApiResource = PODS
) -> None:
    for verb, name, value in operations:
        found = store.find(resource, "default", name)
        if verb == "create" and found is None:
            store.create(resource, named(name, spec={"nodeName": f"n{value}"}))
        elif verb == "update" and found is not None:
            store.update(resource, {**found, "spec": {"nodeName": f"n{value}"}}, based_on=found)
        elif verb == "delete" and found is not None:
            store.delete(resource, "default", name)


@settings(max_examples=share(40))
@given(before=_OPERATIONS, after=_OPERATIONS, wanted=st.sampled_from(["", "n0", "n1"]))
def test_a_watcher_that_goes_on_from_a_list_ends_with_the_same_objects(
    before: list[tuple[str, str, int]], after: list[tuple[str, str, int]], wanted: str
) -> None:
    def matches(obj: Json) -> bool:
        return not wanted or obj["spec"]["nodeName"] == wanted

    store = new_store(history=1000)
    run(store, before)
    copy = {each["metadata"]["name"]: each for each in store.list(PODS) if matches(each)}
    start = store.version
    run(store, after)
    for change in store.changes_since(PODS, start):
        line = line_of(change, namespace="", matches=matches)
        if line is None:
            continue
        obj = line["object"]
        name = obj["metadata"]["name"]
        assert (line["type"] == "ADDED") is (name not in copy)
        if line["type"] == "DELETED":
            del copy[name]
        else:
            copy[name] = obj
    assert {name: version(obj) for name, obj in copy.items()} == {
        each["metadata"]["name"]: version(each) for each in store.list(PODS) if matches(each)
    }
