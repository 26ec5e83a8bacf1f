"""Pods are read by a short way where they are as most are: it must not be seen."""

from hypothesis import given
from hypothesis import strategies as st

from contract.requests import read_pod_demand
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json
from view.model.pods import read_pod

_COUNT: st.SearchStrategy[object] = st.sampled_from(
    ["30", "150", "100", "4", "", "x", 30, 0, None, [], True, "1e2"]
)
_LISTED = st.dictionaries(st.sampled_from([NAMES.core, NAMES.memory, "cpu"]), _COUNT, max_size=3)
_RESOURCES: st.SearchStrategy[object] = st.fixed_dictionaries(
    {},
    optional={each: _LISTED | st.sampled_from([None, "x", []]) for each in ("limits", "requests")},
)
_CONTAINER = st.fixed_dictionaries(
    {}, optional={"name": st.sampled_from(["a", "b", 1]), "resources": _RESOURCES | st.none()}
)
_SPEC = st.fixed_dictionaries(
    {"containers": st.lists(_CONTAINER | st.none(), max_size=2)},
    optional={"initContainers": st.lists(_CONTAINER, max_size=1)},
)


@patient
@given(_SPEC)
def test_a_pod_asks_for_what_the_contract_reads(spec: Json) -> None:
    demand, errors = read_pod_demand(spec, NAMES)
    found = read_pod({"metadata": {"name": "a", "uid": "u"}, "spec": spec}, NAMES)
    read = (found.placed.demand, found.errors) if found is not None else None
    assert read == ((demand, tuple(map(str, errors))) if demand else None)
