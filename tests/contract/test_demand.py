import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.demand import (
    LARGEST_COUNT,
    ContainerDemand,
    ContainerKind,
    Demand,
    PodDemand,
    asks_for_gpus,
    parse_pod_demand,
    read_pod_demand,
)
from contract.errors import Fault, InvalidDemand
from contract.names import Names
from contract.resource import Resource

Json = dict[str, Any]
NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory
PATH = "spec.containers[0].resources"
CORE_LIMIT, MEMORY_LIMIT = f"{PATH}.limits[{CORE}]", f"{PATH}.limits[{MEMORY}]"
CORE_REQUEST, MEMORY_REQUEST = f"{PATH}.requests[{CORE}]", f"{PATH}.requests[{MEMORY}]"
MAIN, INIT, SIDECAR = ContainerKind.MAIN, ContainerKind.INIT, ContainerKind.SIDECAR

SPEC: Json = {
    "initContainers": [
        {"name": "plain-init"},
        {"name": "init", "resources": {"limits": {CORE: "100"}}},
        {
            "name": "sidecar",
            "restartPolicy": "Always",
            "resources": {"limits": {CORE: "10", MEMORY: "2"}},
        },
    ],
    "containers": [
        {"name": "plain", "resources": {"limits": {"cpu": "1"}}},
        {"name": "main", "resources": {"limits": {CORE: "50", MEMORY: "4"}}},
    ],
}


def _spec(resources: object) -> Json:
    return {"containers": [{"name": "c", "resources": resources}]}


def _limits(cores: object = None, memory: object = None) -> Json:
    """A spec of one container; what is not told is absent, not null."""
    counts = {CORE: cores, MEMORY: memory}
    return _spec({"limits": {name: count for name, count in counts.items() if count is not None}})


def _one(spec: Json) -> Demand:
    (container,) = parse_pod_demand(spec, NAMES).containers
    return container.demand


def _refusals(spec: Json) -> list[str]:
    with pytest.raises(InvalidDemand) as caught:
        parse_pod_demand(spec, NAMES)
    assert str(caught.value) == "; ".join(map(str, caught.value.errors))
    return [str(error) for error in caught.value.errors]


# --- good ----------------------------------------------------------------------------


def test_containers_stand_in_the_order_in_which_the_kubelet_admits_them() -> None:
    assert parse_pod_demand(SPEC, NAMES) == PodDemand(
        (
            ContainerDemand("init", INIT, 1, Demand(100, 0)),
            ContainerDemand("sidecar", SIDECAR, 2, Demand(10, 2)),
            ContainerDemand("main", MAIN, 1, Demand(50, 4)),
        )
    )


def test_init_containers_come_first_wherever_they_stand_in_the_object() -> None:
    turned = dict(reversed(SPEC.items()))
    assert list(turned) != list(SPEC)
    assert parse_pod_demand(turned, NAMES) == parse_pod_demand(SPEC, NAMES)


@pytest.mark.parametrize("policy", [None, "Never", "OnFailure", "always", ["Always"]])
def test_only_a_restart_policy_of_always_makes_a_sidecar(policy: object) -> None:
    spec = copy.deepcopy(SPEC)
    spec["initContainers"][2]["restartPolicy"] = policy
    found = parse_pod_demand(spec, NAMES).of("sidecar")
    assert found is not None
    assert found.kind is INIT


def test_a_restart_policy_makes_no_sidecar_of_a_main_container() -> None:
    spec = _limits("50", "4")
    spec["containers"][0]["restartPolicy"] = "Always"
    assert parse_pod_demand(spec, NAMES).containers[0].kind is MAIN


def test_a_container_is_found_by_its_name() -> None:
    demand = parse_pod_demand(SPEC, NAMES)
    assert demand.of("main") == demand.containers[2]
    assert demand.of("plain") is demand.of("") is None


@pytest.mark.parametrize(
    ("cores", "memory", "expected"),
    [
        ("1", "1", Demand(1, 1)),
        ("99", "1", Demand(99, 1)),
        (50.0, 4, Demand(50, 4)),
        ("100", None, Demand(100, 0)),
        ("1k", "7", Demand(1000, 7)),
        ("50000m", "2e1", Demand(50, 20)),
        ("50", "16777216", Demand(50, 2**24)),
        ("100", "0", Demand(100, 0)),
    ],
)
def test_whole_numbers_are_read_in_every_form_kubernetes_accepts(
    cores: object, memory: object, expected: Demand
) -> None:
    assert _one(_limits(cores, memory)) == expected


@pytest.mark.parametrize("request_", ["50", 50, "50000m"])
def test_requests_equal_to_limits_are_allowed_in_any_form(request_: object) -> None:
    resources = {"limits": {CORE: "50", MEMORY: "4"}, "requests": {CORE: request_}}
    assert _one(_spec(resources)) == Demand(50, 4)


def test_another_domain_is_another_resource() -> None:
    other = Names("gpu.example.org")
    assert not parse_pod_demand(SPEC, other)
    spec = _spec({"limits": {other.core: "100", CORE: "nonsense"}})
    assert parse_pod_demand(spec, other).containers[0].demand == Demand(100, 0)


# --- shares and whole cards ----------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "is_share", "per_card"),
    [
        (Demand(1, 4), True, (4,)),
        (Demand(99, 4), True, (4,)),
        (Demand(100, 4), False, (4,)),
        (Demand(300, 7), False, (3, 2, 2)),
        (Demand(300, 2), False, (1, 1, 0)),
        (Demand(0, 4), False, ()),
    ],
)
def test_memory_is_shared_out_over_the_cards(
    demand: Demand, is_share: bool, per_card: tuple[int, ...]
) -> None:
    assert (demand.is_share, demand.cards) == (is_share, len(per_card))
    assert demand.per_card(Resource.MEMORY) == per_card


@given(st.integers(1, 16), st.integers(0, 5000))
def test_memory_shared_out_is_all_there_and_as_even_as_it_goes(cards: int, memory: int) -> None:
    each = Demand(cards * 100, memory).per_card(Resource.MEMORY)
    assert len(each) == cards
    assert sum(each) == memory
    assert max(each) - min(each) <= 1
    assert list(each) == sorted(each, reverse=True)


# --- bad: one rule at a time ---------------------------------------------------------

_WHOLE_CARDS = "more than one card must be a multiple of 100 (100 is one whole card): ask for "
_NUMBER = 'must be a whole number such as "50"'
_WHOLE = "must be a whole number, it cannot be divided further"
_NEGATIVE = "must not be negative: leave it out to ask for none"
_MOST = "must be at most 2147483647"
_BYTES = "is counted in blocks, not in bytes: with blocks of 256 MiB write "


@pytest.mark.parametrize(
    ("cores", "found", "ask_for"),
    [
        (101, "101", "100 or 200"),
        ("250", '"250"', "200 or 300"),
        ("1Ki", '"1Ki"', "1000 or 1100"),
        # the number above would be beyond what the kubelet can ask for
        (str(LARGEST_COUNT), '"2147483647"', "2147483600"),
    ],
)
def test_cores_above_one_card_must_be_whole_cards(cores: object, found: str, ask_for: str) -> None:
    assert _refusals(_limits(cores, "4")) == [
        f"{CORE_LIMIT}: Invalid value: {found}: {_WHOLE_CARDS}{ask_for}"
    ]


def test_a_share_needs_memory_and_memory_needs_cores() -> None:
    (found,) = _refusals(_limits("99"))
    assert found == (
        f"{MEMORY_LIMIT}: Required value: a shared card needs memory: 99 of 100 cores "
        "share a card with others, say how many memory blocks to take, at least 1"
    )
    assert _refusals(_limits("99", "0")) == [found], "0 is none"
    (found,) = _refusals(_limits(memory="4"))
    assert _refusals(_limits("0", "4")) == [found]
    assert found == (
        f"{CORE_LIMIT}: Required value: memory (4) without cores: add 1 to 99 cores for a "
        "share of one card, or a multiple of 100 for whole cards"
    )


_BAD_COUNTS = [
    ("-1k", '"-1k"', _NEGATIVE),
    ("1.5", '"1.5"', _WHOLE),
    ("-0.5", '"-0.5"', _WHOLE),
    ("", '""', _NUMBER),
    ("50%", '"50%"', _NUMBER),
    (None, "null", _NUMBER),  # it does not mean absent
    (True, "true", _NUMBER),
    ([50], "a list", _NUMBER),
    (float("inf"), "Infinity", _NUMBER),
    pytest.param(10**10_000, "a number of 33220 bits", _MOST, id="huge"),
]


@pytest.mark.parametrize("resource", [CORE, MEMORY])
@pytest.mark.parametrize(("count", "found", "rule"), _BAD_COUNTS)
def test_a_count_must_be_a_whole_number_and_is_told_of_once(
    resource: str, count: object, found: str, rule: str
) -> None:
    limits = {CORE: "50", MEMORY: "4"} | {resource: count}
    assert _refusals(_spec({"limits": limits})) == [
        f"{PATH}.limits[{resource}]: Invalid value: {found}: {rule}"
    ]


@pytest.mark.parametrize(
    ("memory", "blocks"),
    [
        ("16Gi", "64"),
        ("8Gi", "32"),
        ("8Mi", "1"),
        ("8G", "30"),
        ("500M", "2"),
        (str(2**24 + 1), "1"),
        (8 * 2**30, "32"),
    ],
)
def test_memory_written_in_bytes_is_refused_with_the_blocks_to_write(
    memory: object, blocks: str
) -> None:
    (found,) = _refusals(_limits("50", memory))
    assert found.startswith(f"{MEMORY_LIMIT}: Invalid value: ")
    assert found.endswith(f": {_BYTES}{blocks}")


def test_more_cores_than_the_kubelet_can_ask_for_are_refused() -> None:
    assert _refusals(_limits("2147483648")) == [
        f'{CORE_LIMIT}: Invalid value: "2147483648": {_MOST}'
    ]


@pytest.mark.parametrize(
    ("request_", "found"), [("60", '"60"'), (0, "0"), (None, "null"), ([], "a list")]
)
def test_requests_that_differ_from_limits_are_refused(request_: object, found: str) -> None:
    resources = {"limits": {CORE: "50", MEMORY: "4"}, "requests": {CORE: request_}}
    assert _refusals(_spec(resources)) == [
        (
            f'{CORE_REQUEST}: Invalid value: {found}: must be equal to limits ("50"), extended '
            "resources cannot be overcommitted: leave requests out"
        )
    ]


@pytest.mark.parametrize("limits", [None, {}, [], "50", {MEMORY: "4"}])
def test_requests_without_limits_are_refused(limits: object) -> None:
    assert _refusals(_spec({"limits": limits, "requests": {CORE: "50"}})) == [
        (
            f'{CORE_LIMIT}: Required value: requests asks for "50" but limits does not: '
            "extended resources are asked for in limits, write it there"
        )
    ]


# --- bad: several things at once -----------------------------------------------------


def _pod_of(inits: list[tuple[int, bool]], mains: list[int]) -> Json:
    def ask(cores: int) -> Json:
        limits = {CORE: str(cores)} | ({MEMORY: "1"} if cores < 100 else {})
        return {"resources": {"limits": limits}}

    return {
        "initContainers": [
            ask(cores) | ({"restartPolicy": "Always"} if sidecar else {})
            for cores, sidecar in inits
        ],
        "containers": [ask(cores) for cores in mains],
    }


@pytest.mark.parametrize(
    ("inits", "mains", "path", "left"),
    [
        ([(200, False)], [100], "spec.containers[0]", 200),
        ([(300, False)], [30, 100], "spec.containers[0]", 300),
        ([(100, False), (200, False)], [50], "spec.containers[0]", 200),
        ([(200, False), (50, True)], [200], "spec.initContainers[1]", 200),
        ([(400, False), (100, False)], [400], "spec.initContainers[1]", 400),
    ],
)
def test_less_than_several_cards_that_init_containers_leave_over_would_be_split(
    inits: list[tuple[int, bool]], mains: list[int], path: str, left: int
) -> None:
    """The kubelet hands them on at random, fact K7: it could never be served."""
    _, errors = read_pod_demand(_pod_of(inits, mains), NAMES)
    assert errors[0].path == f"{path}.resources.limits[{CORE}]"
    assert errors[0].rule == "split-over-cards"
    assert (
        f"init containers before it leave {left} cores over, and the kubelet would hand it "
        f"some of these, from several cards: ask for {left} or more here, or for at most 100 there"
    ) in str(errors[0])


@pytest.mark.parametrize(
    ("inits", "mains"),
    [
        ([(200, False)], [200, 100]),
        ([(200, False)], [300, 50]),
        ([(100, False)], [30, 70]),
        ([(100, False), (50, True)], [50]),
        ([(200, False), (200, True)], [50]),
        ([(200, True)], [50]),
        ([(200, False), (300, False)], [300]),
        ([(200, False)], []),
    ],
)
def test_what_init_containers_leave_over_may_be_taken_whole_or_be_of_one_card(
    inits: list[tuple[int, bool]], mains: list[int]
) -> None:
    assert read_pod_demand(_pod_of(inits, mains), NAMES)[1] == ()


def test_everything_wrong_with_a_pod_is_told_at_once_container_by_container() -> None:
    spec = {
        "initContainers": [{"name": "i", "resources": {"limits": {CORE: "50"}}}],
        "containers": [
            {
                "name": "a",
                "resources": {"limits": {CORE: "150", MEMORY: "x"}, "requests": {CORE: "100"}},
            },
            {"name": "fine", "resources": {"limits": {CORE: "100"}}},
            {"name": "b", "resources": {"requests": {MEMORY: "4"}}},
        ],
    }
    _, errors = read_pod_demand(spec, NAMES)
    assert [(error.path, error.rule, error.fault) for error in errors] == [
        (
            f"spec.initContainers[0].resources.limits[{MEMORY}]",
            "share-without-memory",
            Fault.REQUIRED,
        ),
        (CORE_REQUEST, "requests-differ", Fault.INVALID),
        (CORE_LIMIT, "not-whole-cards", Fault.INVALID),
        (MEMORY_LIMIT, "not-a-number", Fault.INVALID),
        (
            f"spec.containers[2].resources.limits[{MEMORY}]",
            "requests-without-limits",
            Fault.REQUIRED,
        ),
    ]
    assert len(_refusals(spec)) == 5


def test_a_path_starts_where_the_spec_stands_in_its_object() -> None:
    _, errors = read_pod_demand(_limits(150), NAMES, path="spec.template.spec")
    assert [error.path for error in errors] == [
        f"spec.template.spec.containers[0].resources.limits[{CORE}]"
    ]


def test_a_broken_rule_does_not_hide_a_count_that_can_be_read() -> None:
    demand, errors = read_pod_demand(_limits("150", "x"), NAMES)
    assert errors
    assert demand.containers == (ContainerDemand("c", MAIN, 0, Demand(150, 0)),)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"containers": {"name": "c"}},
        {"containers": [None, "c", 1, [], {}, {"resources": [CORE]}]},
        {"containers": [{"resources": {"limits": CORE, "requests": [MEMORY]}}]},
        {"ephemeralContainers": [{"resources": {"limits": {CORE: "50"}}}]},
        {"containers": [{"resources": {"limits": {CORE: "0", MEMORY: 0}, "requests": {CORE: 0}}}]},
        {"containers": [{"resources": {"limits": {CORE: "0m", MEMORY: "-0.0"}}}]},
    ],
)
def test_what_is_no_spec_with_our_resources_asks_for_nothing(spec: object) -> None:
    assert read_pod_demand(spec, NAMES) == (PodDemand(), ())
    assert not asks_for_gpus(spec, NAMES)


def test_a_container_without_a_name_is_read_all_the_same() -> None:
    spec = {"containers": [{"name": 7, "resources": {"limits": {CORE: "100"}}}]}
    assert parse_pod_demand(spec, NAMES).containers[0].name == ""


@pytest.mark.parametrize(
    ("field", "resource", "count"),
    [
        ("limits", CORE, None),
        ("requests", CORE, "x"),
        ("limits", MEMORY, "-1"),
        ("requests", MEMORY, 1),
    ],
)
def test_a_container_that_asks_for_a_resource_asks_for_gpus_valid_or_not(
    field: str, resource: str, count: object
) -> None:
    assert asks_for_gpus(_spec({field: {resource: count}}), NAMES)


# --- whatever comes ------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_counts = _json | st.sampled_from(["50", "100", "150", "4", "1k", "1.5", "-1", 7, 10**400])
_listings = _json | st.dictionaries(st.sampled_from([CORE, MEMORY, "cpu"]), _counts)
_resources = _json | st.fixed_dictionaries(
    {}, optional={"limits": _listings, "requests": _listings}
)
_containers = _json | st.lists(
    _json
    | st.fixed_dictionaries(
        {}, optional={"name": _json, "restartPolicy": _json, "resources": _resources}
    ),
    max_size=3,
)
_specs = _json | st.fixed_dictionaries(
    {}, optional={"initContainers": _containers, "containers": _containers}
)


@given(_specs)
def test_no_spec_however_hostile_raises_and_what_is_accepted_can_be_served(spec: object) -> None:
    demand, errors = read_pod_demand(spec, NAMES)
    if not asks_for_gpus(spec, NAMES):
        assert (demand, errors) == (PodDemand(), ())
    else:
        assert demand or errors
    for each in demand.containers:
        assert 0 <= each.demand.cores <= LARGEST_COUNT
        assert 0 <= each.demand.memory <= LARGEST_COUNT
        assert each.demand.cores or each.demand.memory
        if not errors:
            assert each.demand.cards >= 1
            assert sum(each.demand.per_card(Resource.MEMORY)) == each.demand.memory
            assert each.demand.memory >= 1 or not each.demand.is_share
            assert each.demand.is_share or each.demand.cores % 100 == 0
    for error in errors:
        assert str(error).startswith(f"{error.path}: {error.fault.value}: ")
        assert "\n" not in str(error)
        assert bool(error.value) == (error.fault is Fault.INVALID)


@given(st.integers(1, LARGEST_COUNT), st.integers(0, 2**24))
def test_the_rules_accept_exactly_shares_with_memory_and_whole_cards(
    cores: int, memory: int
) -> None:
    limits: Mapping[str, int] = {CORE: cores} | ({MEMORY: memory} if memory else {})
    _, errors = read_pod_demand(_spec({"limits": limits}), NAMES)
    valid = cores % 100 == 0 or (cores < 100 and memory > 0)
    assert (not errors) == valid
