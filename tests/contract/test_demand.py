from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.demand import LARGEST_COUNT, ContainerDemand, ContainerKind, Demand, PodDemand
from contract.errors import FieldFault
from contract.names import Names
from contract.requests import asks_for_gpus, read_pod_demand
from contract.resource import Resource
from tests.examples import any_json

Json = dict[str, Any]
NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory
CARDS = NAMES.gpu_cards_of("c")
PATH = "spec.containers[0].resources"
CORE_LIMIT, MEMORY_LIMIT = f"{PATH}.limits[{CORE}]", f"{PATH}.limits[{MEMORY}]"
CORE_REQUEST, MEMORY_REQUEST = f"{PATH}.requests[{CORE}]", f"{PATH}.requests[{MEMORY}]"
MAIN, INIT, SIDECAR = ContainerKind.MAIN, ContainerKind.INIT, ContainerKind.SIDECAR


def _spec(resources: object) -> Json:
    return {"containers": [{"name": "c", "resources": resources}]}


def _limits(cores: object = None, memory: object = None) -> Json:
    """A spec of one container; a count of ``None`` is absent, not null."""
    counts = {CORE: cores, MEMORY: memory}
    return _spec({"limits": {name: count for name, count in counts.items() if count is not None}})


def _one(spec: Json) -> Demand:
    (container,) = read_pod_demand({"spec": spec}, NAMES)[0].containers
    return container.demand


def _refusals(spec: Json) -> list[str]:
    errors = read_pod_demand({"spec": spec}, NAMES)[1]
    assert errors
    return [str(error) for error in errors]


def _container(name: str, cores: str, memory: str = "0", **fields: object) -> Json:
    return {"name": name, "resources": {"limits": {CORE: cores, MEMORY: memory}}, **fields}


@pytest.mark.parametrize("policy", ["Always", None, "Never", "OnFailure", "always", ["Always"]])
def test_containers_stand_in_the_order_in_which_the_kubelet_admits_them(policy: object) -> None:
    spec = {
        "initContainers": [
            {"name": "plain-init"},
            _container("init", "100"),
            _container("sidecar", "10", "2", restartPolicy=policy),
        ],
        "containers": [
            {"name": "plain", "resources": {"limits": {"cpu": "1"}}},
            _container("main", "50", "4", restartPolicy="Always"),
        ],
    }
    assert read_pod_demand({"spec": spec}, NAMES)[0] == PodDemand(
        (
            ContainerDemand("init", INIT, 1, Demand(100, 0)),
            ContainerDemand("sidecar", SIDECAR if policy == "Always" else INIT, 2, Demand(10, 2)),
            ContainerDemand("main", MAIN, 1, Demand(50, 4)),
        )
    )


@pytest.mark.parametrize(
    ("cores", "memory", "expected"),
    [
        (50.0, 4, Demand(50, 4)),
        ("1k", None, Demand(1000, 0)),
        ("50000m", "2e1", Demand(50, 20)),
        ("50", "16777216", Demand(50, 2**24)),
    ],
)
def test_whole_numbers_are_read_in_every_form_kubernetes_accepts(
    cores: object, memory: object, expected: Demand
) -> None:
    spec = _limits(cores, memory)
    assert _one(spec) == expected
    resources = spec["containers"][0]["resources"]
    resources["requests"] = {CORE: f"{expected.cores}000m"}
    assert _one(spec) == expected, "requests equal to limits are allowed in any form"


@given(st.integers(1, 16), st.integers(0, 5000))
def test_the_memory_of_whole_cards_is_divided_as_evenly_as_possible(
    cards: int, memory: int
) -> None:
    each = Demand(cards * 100, memory).per_card(Resource.MEMORY)
    assert len(each) == cards
    assert sum(each) == memory
    assert max(each) - min(each) <= 1
    assert list(each) == sorted(each, reverse=True)
    assert Demand(cards, memory).per_card(Resource.MEMORY) == (memory,), (
        "a share has it all on one card"
    )
    assert Demand(0, memory).per_card(Resource.MEMORY) == ()


_WHOLE_CARDS = "more than one card must be a multiple of 100 (100 is one whole card): request "
_NUMBER = 'must be a whole number such as "50"'
_WHOLE = "must be a whole number, it cannot be divided further"
_NEGATIVE = "must not be negative: leave it out to request none"
_MOST = "must be at most 2147483647"
_BYTES = "is counted in blocks, not in bytes: with blocks of 256 MiB write "


@pytest.mark.parametrize(
    ("cores", "found", "advice"),
    [
        (101, "101", "100 or 200"),
        ("250", '"250"', f'200 or 300, or annotate {CARDS}: "5" for 50 of each of 5 cards'),
        ("1Ki", '"1Ki"', f'1000 or 1100, or annotate {CARDS}: "16" for 64 of each of 16 cards'),
        ("1650", '"1650"', "1600 or 1700"),
        # the number above would be beyond what the kubelet can request
        (str(LARGEST_COUNT), '"2147483647"', "2147483600"),
    ],
)
def test_cores_above_one_card_must_be_whole_cards(cores: object, found: str, advice: str) -> None:
    assert _refusals(_limits(cores, "4")) == [
        f"{CORE_LIMIT}: Invalid value: {found}: {_WHOLE_CARDS}{advice}"
    ]


@pytest.mark.parametrize("longer", [0, 1])
def test_a_name_too_long_for_an_annotation_has_no_advice_to_write_one(longer: int) -> None:
    spec = _limits("150", "4")
    spec["containers"][0]["name"] = "c" * (63 - len("gpu-cards-") + longer)
    assert ("annotate" in _refusals(spec)[0]) == (not longer)


def test_a_share_needs_memory_and_memory_needs_cores() -> None:
    (found,) = _refusals(_limits("99"))
    assert found == (
        f"{MEMORY_LIMIT}: Required value: a share of a card needs memory: request at least 1 "
        "memory block beside 99 of 100 cores"
    )
    assert _refusals(_limits("99", "0")) == [found], "0 is none"
    (few,) = _refusals(_limits("1"))
    assert few.endswith("beside 1 of 100 cores; if you mean 1 whole card, write 100 cores")
    (few,) = _refusals(_limits("8"))
    assert few.endswith("beside 8 of 100 cores; if you mean 8 whole cards, write 800 cores")
    (found,) = _refusals(_limits(memory="4"))
    assert _refusals(_limits("0", "4")) == [found]
    assert found == (
        f"{CORE_LIMIT}: Required value: memory (4) without cores: add 1 to 99 cores for a "
        "share of one card, or a multiple of 100 for whole cards"
    )


_BAD_COUNTS = [
    ("-1k", '"-1k"', _NEGATIVE),
    ("-0.5", '"-0.5"', _WHOLE),
    ("50%", '"50%"', _NUMBER),
    (None, "null", _NUMBER),  # it does not mean absent
    (True, "true", _NUMBER),
    ([50], "a list", _NUMBER),
    pytest.param(10**10_000, "a number of 33220 bits", _MOST, id="huge"),
]


@pytest.mark.parametrize("resource", [CORE, MEMORY])
@pytest.mark.parametrize(("count", "found", "rule"), _BAD_COUNTS)
def test_a_count_must_be_a_whole_number_and_is_reported_once(
    resource: str, count: object, found: str, rule: str
) -> None:
    limits = {CORE: "50", MEMORY: "4"} | {resource: count}
    assert _refusals(_spec({"limits": limits})) == [
        f"{PATH}.limits[{resource}]: Invalid value: {found}: {rule}"
    ]


_BLOCK = ": with blocks of 256 MiB, "


@pytest.mark.parametrize(
    ("cores", "memory", "advice"),
    [
        ("500m", "4", ": 0.5 of a card is 50"),  # as the API server writes "0.5"
        ("0.125", "4", ": 0.125 of a card is 13"),
        ("1500m", "4", ": 100 is one card"),
        ("0.001", "4", ": 100 is one card"),
        ("50", "2.5", f"{_BLOCK}2.5 GiB are 10"),
        ("50", "0.3", f"{_BLOCK}0.3 GiB are 2"),
        ("50", f"{10**40}.5", ""),
    ],
)
def test_a_part_of_a_core_or_block_is_refused_with_the_number_to_write(
    cores: object, memory: str, advice: str
) -> None:
    (found,) = _refusals(_limits(cores, memory))
    assert found.endswith(f": {_WHOLE}{advice}")


@pytest.mark.parametrize(
    ("memory", "blocks"),
    [("16Gi", 64), ("8Mi", 1), ("8G", 30), (str(2**24 + 1), 1), (8 * 2**30, 32)],
)
def test_memory_written_in_bytes_is_refused_with_the_blocks_to_write(
    memory: object, blocks: int
) -> None:
    (found,) = _refusals(_limits("50", memory))
    assert found.startswith(f"{MEMORY_LIMIT}: Invalid value: ")
    assert found.endswith(f": {_BYTES}{blocks}")


@pytest.mark.parametrize(("request_", "found"), [("60", '"60"'), (0, "0"), (None, "null")])
def test_requests_that_differ_from_limits_are_refused(request_: object, found: str) -> None:
    resources = {"limits": {CORE: "50", MEMORY: "4"}, "requests": {CORE: request_}}
    assert _refusals(_spec(resources)) == [
        (
            f'{CORE_REQUEST}: Invalid value: {found}: must be equal to limits ("50"), extended '
            "resources cannot be overcommitted: leave it out of requests"
        )
    ]


@pytest.mark.parametrize("limits", [None, [], {MEMORY: "4"}])
def test_requests_without_limits_are_refused(limits: object) -> None:
    assert _refusals(_spec({"limits": limits, "requests": {CORE: "50"}})) == [
        (
            f'{CORE_LIMIT}: Required value: requests has "50", but limits does not have it: '
            "extended resources must be in limits"
        )
    ]


def _divided(cores: object, memory: object, **cards: object) -> Json:
    """A pod of one container ``c``; *cards* are the annotations, by container."""
    annotations = {NAMES.gpu_cards_of(name): value for name, value in cards.items()}
    return {"metadata": {"annotations": annotations}, "spec": _limits(cores, memory)}


@pytest.mark.parametrize(
    ("cores", "memory", "cards", "expected"),
    [
        ("150", "4", "2", (2, 75, (2, 2))),
        ("30", "9", "3", (3, 10, (3, 3, 3))),
        ("1584", "16", "16", (16, 99, (1,) * 16)),
        ("50", "4", "1", (1, 50, (4,))),
        ("50", "4", None, (1, 50, (4,))),
        ("200", "9", "", (2, 100, (5, 4))),
    ],
)
def test_totals_are_divided_evenly_over_the_annotated_number_of_cards(
    cores: str, memory: str, cards: object, expected: tuple[int, int, tuple[int, ...]]
) -> None:
    demand, errors = read_pod_demand(_divided(cores, memory, c=cards), NAMES)
    assert errors == ()
    found = demand.containers[0].demand
    assert (found.cards, found.cores_per_card, found.per_card(Resource.MEMORY)) == expected
    assert found.is_share == (found.cores_per_card < 100)


_SPLIT = "divides a share, which has 1 to 99 cores of each card, but "


@pytest.mark.parametrize(
    ("cores", "memory", "cards", "rule", "detail"),
    [
        *(
            ("100", "64", cards, "not-a-split", "must be a whole number from 1 to 16")
            for cards in ("0", "17", "-1", "two", "2.0", " 2", "1" * 99)
        ),
        *(
            ("100", "64", cards, "not-a-split", "must be a whole number from 1 to 16, in quotes")
            for cards in (2, ["2"])
        ),
        (
            *("100", "4", "1", "split-of-whole-cards"),
            (
                f"{_SPLIT}100 cores over 1 card are 100 of each: request fewer cores, or leave "
                "this out for whole cards"
            ),
        ),
        (
            *("101", "4", "2", "split-uneven"),
            "101 cores cannot be divided evenly over 2 cards: request 100 or 102",
        ),
        (
            *("199", "4", "2", "split-uneven"),
            "199 cores cannot be divided evenly over 2 cards: request 198",
        ),
        (
            *("2", "3", "3", "split-uneven"),
            "2 cores cannot be divided evenly over 3 cards: request 3",
        ),
        (
            *("90", "1", "3", "split-uneven"),
            "1 memory block cannot be divided evenly over 3 cards: request 3",
        ),
        (
            *("12", None, "2", "share-without-memory"),
            (
                "a share of 2 cards needs memory: request at least 2 memory blocks beside 12 of "
                "200 cores"
            ),
        ),
    ],
)
def test_a_share_that_cannot_be_divided_is_refused(
    cores: str, memory: str | None, cards: object, rule: str, detail: str
) -> None:
    _, errors = read_pod_demand(_divided(cores, memory, c=cards), NAMES, path="spec.template.")
    path = f"metadata.annotations[{CARDS}]" if memory else MEMORY_LIMIT
    assert [(each.path, each.rule, each.detail) for each in errors] == [
        (f"spec.template.{path}", rule, detail)
    ]


def test_a_number_of_cards_for_a_container_without_a_request_is_refused() -> None:
    pod = _divided("50", "4", d="2", c="2", e="")
    pod["spec"]["containers"].append({"name": "d", "resources": {"limits": {"cpu": "1"}}})
    _, (error,) = read_pod_demand(pod, NAMES)
    assert str(error) == (
        f'metadata.annotations[{NAMES.gpu_cards_of("d")}]: Invalid value: "2": the pod has no '
        'container "d" that requests GPUs, only "c"'
    )
    many = _divided("50", "4", **{f"x{n}": "2" for n in range(9999)})
    assert len(read_pod_demand(many, NAMES)[1]) == 32


def test_all_errors_of_a_pod_are_reported_at_once_container_by_container() -> None:
    wrong = _container("a", "150", "x")
    wrong["resources"]["requests"] = {CORE: "100"}
    spec = {
        "initContainers": [_container("i", "50")],
        "containers": [
            wrong,
            _container("fine", "100"),
            {"name": "b", "resources": {"requests": {MEMORY: "4"}}},
        ],
    }
    demand, errors = read_pod_demand({"spec": spec}, NAMES)
    assert [(error.path, error.rule, error.fault.name) for error in errors] == [
        (
            f"spec.initContainers[0].resources.limits[{MEMORY}]",
            *("share-without-memory", "REQUIRED"),
        ),
        (CORE_REQUEST, "requests-differ", "INVALID"),
        (CORE_LIMIT, "not-whole-cards", "INVALID"),
        (MEMORY_LIMIT, "not-a-number", "INVALID"),
        (
            f"spec.containers[2].resources.limits[{MEMORY}]",
            *("requests-without-limits", "REQUIRED"),
        ),
    ]
    counts = [(each.name, each.demand) for each in demand.containers]
    assert counts[1] == ("a", Demand(150, 0)), "an error does not hide a count"


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"containers": {"name": "c"}},
        {"containers": [None, "c", 1, [], {}, {"resources": [CORE]}]},
        {"ephemeralContainers": [{"resources": {"limits": {CORE: "50"}}}]},
        {"containers": [{"resources": {"limits": {CORE: "0m", MEMORY: "-0.0"}}}]},
    ],
)
def test_a_spec_without_our_resources_has_no_demand(spec: object) -> None:
    assert read_pod_demand({"spec": spec}, NAMES) == (PodDemand(), ())
    assert not asks_for_gpus(spec, NAMES)


_json = any_json()
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


_splits = st.sampled_from(["1", "2", "3", "16", "17", "", "x"]) | _json
_metadata = _json | st.fixed_dictionaries(
    {
        "annotations": _json
        | st.dictionaries(
            st.sampled_from(["", "c", "d"]).map(NAMES.gpu_cards_of) | st.text(), _splits
        )
    }
)


@given(_specs, _metadata)
def test_no_hostile_spec_raises_and_an_accepted_one_can_be_served(
    spec: object, metadata: object
) -> None:
    demand, errors = read_pod_demand({"metadata": metadata, "spec": spec}, NAMES)
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
            assert each.demand.cores_per_card * each.demand.cards == each.demand.cores
    for error in errors:
        assert str(error).startswith(f"{error.path}: {error.fault.value}: ")
        assert "\n" not in str(error)
        assert bool(error.value) == (error.fault is FieldFault.INVALID)


@given(
    st.integers(1, LARGEST_COUNT) | st.integers(1, 2000), st.integers(0, 2**24), st.integers(0, 18)
)
def test_the_rules_accept_exactly_shares_with_memory_and_whole_cards(
    cores: int, memory: int, cards: int
) -> None:
    """A number of cards of 0 stands for a pod without the annotation."""
    pod = _divided(cores, memory or None, **({"c": str(cards)} if cards else {}))
    _, errors = read_pod_demand(pod, NAMES)
    if cards:
        even = 1 <= cards <= 16 and cores % cards == 0 and memory % cards == 0
        assert (not errors) == (even and cores < 100 * cards and memory > 0)
    else:
        assert (not errors) == (cores % 100 == 0 or (cores < 100 and memory > 0))
