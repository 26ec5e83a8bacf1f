"""What one agent tells its successor of its ledger."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.ledger_copy import (
    Held,
    Knowledge,
    decode,
    decode_rest,
    encode,
    encode_rest,
    inherit,
)
from agent.allocator.model.pod_view import PodId
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY
from tests.agent.ledger_rules import check
from tests.examples import share

POD = PodId("default", "a", "uid-a")
OTHER = PodId("default", "b", "uid-b")

ids = st.frozensets(
    st.builds(
        lambda card, place: f"{card}::{place}",
        st.sampled_from(["GPU-0", "GPU-1", "MIG::odd"]),
        st.integers(0, 5000),
    ),
    min_size=1,
)
holdings = st.dictionaries(
    st.sampled_from(Resource),
    st.builds(Holding, ids, st.sampled_from(Evidence), st.booleans(), st.booleans()),
)
helds = st.builds(
    Held,
    st.builds(ContainerRef, st.builds(PodId, st.text(), st.text(), st.text()), st.text()),
    st.sampled_from(ContainerKind),
    holdings,
)


@settings(max_examples=share(40))
@given(helds)
def test_what_is_told_is_what_is_understood(held: Held) -> None:
    assert decode(json.loads(json.dumps(encode(held)))) == held


pods = st.frozensets(st.builds(PodId, st.text(), st.text(), st.text()))
kubelets = st.none() | st.tuples(st.integers(), st.integers(), st.integers())


@settings(max_examples=share(40))
@given(pods, pods, pods, st.none() | pods, kubelets)
def test_what_became_of_admissions_is_understood_too(
    rejected: frozenset[PodId],
    admission_over: frozenset[PodId],
    refused: frozenset[PodId],
    there_at_start: frozenset[PodId] | None,
    kubelet: tuple[int, ...] | None,
) -> None:
    known = Knowledge((), rejected, admission_over, refused, there_at_start, kubelet)
    assert decode_rest(json.loads(json.dumps(encode_rest(known))), ()) == known


def test_another_kubelet_has_done_nothing_yet() -> None:
    given = Holding(frozenset(["G::1"]), Evidence.TICKET, proven=True, answered=True)
    known = Knowledge(
        [Held(ContainerRef(POD, "c"), ContainerKind.MAIN, {CORE: given})],
        frozenset([POD]),
        frozenset([POD]),
        frozenset([OTHER]),
        frozenset([POD]),
        (1, 2, 3),
    )
    expected = Held(
        ContainerRef(POD, "c"), ContainerKind.MAIN, {CORE: replace(given, answered=False)}
    )
    assert known.for_another_kubelet() == Knowledge([expected])


def test_an_agent_that_tells_less_is_understood() -> None:
    assert decode_rest({"step": "told"}, ()) == Knowledge()


@pytest.mark.parametrize(
    "message",
    [
        {"rejected": {}},
        {"rejected": [["default", "a"]]},
        {"refused": [["default", "a", 1]]},
        {"refused": "all"},
        {"kubelet": [1, 2]},
        {"kubelet": "k"},
    ],
    ids=str,
)
def test_a_rest_that_makes_no_sense_is_refused(message: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not of the form that is known"):
        decode_rest(message, ())


GOOD = encode(
    Held(
        ContainerRef(POD, "c"),
        ContainerKind.MAIN,
        {CORE: Holding(frozenset(["G::1"]), Evidence.ORDER)},
    )
)


@pytest.mark.parametrize(
    "change",
    [
        {"pod": None},
        {"pod": ["default", "a"]},
        {"container": None, "kind": "sorcerer"},
        {"kind": 3},
        {"holdings": []},
        {"holdings": {"core": None}},
        {"holdings": {"core": {}}},
        {"holdings": {"tea": {"ids": {}, "evidence": "order", "proven": True}}},
        {"holdings": {"core": {"ids": {"G": [[1]]}, "evidence": "order", "proven": True}}},
        {"holdings": {"core": {"ids": {"G": [["a", 2]]}, "evidence": "order", "proven": True}}},
        {"holdings": {"core": {"ids": {}, "evidence": "dice", "proven": True}}},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- of another version: any of them will do
        decode({**GOOD, **change})


def held(pod: PodId, container: str, kind: ContainerKind, *places: str) -> Held:
    return Held(
        ContainerRef(pod, container), kind, {CORE: Holding(frozenset(places), Evidence.WITNESS)}
    )


def owned(ledger: Ledger) -> dict[str, set[str]]:
    return {
        f"{ref.pod.name}/{ref.container}": set(found[CORE].ids) for ref, _, found in ledger.refs()
    }


def test_an_init_container_that_list_does_not_show_is_inherited() -> None:
    ledger = Ledger()
    main = Holding(frozenset(["G::1"]), Evidence.RECORD, proven=True)
    ledger.assign(ContainerRef(POD, "main"), ContainerKind.MAIN, CORE, main)
    inherit(ledger, held(POD, "init", ContainerKind.INIT, "G::1", "G::2"))
    assert owned(ledger) == {"a/main": {"G::1"}, "a/init": {"G::1", "G::2"}}
    assert ledger.kind(ContainerRef(POD, "init")) is ContainerKind.INIT
    check(ledger)


@pytest.mark.parametrize(
    "inherited",
    [
        held(OTHER, "c", ContainerKind.MAIN, "G::1", "G::2"),
        held(OTHER, "c", ContainerKind.INIT, "G::1"),
        held(POD, "other", ContainerKind.MAIN, "G::1"),
        held(POD, "main", ContainerKind.MAIN, "G::7"),
    ],
    ids=["another pod's", "another pod's init", "another container's", "its own, otherwise"],
)
def test_the_kubelets_record_goes_before_what_a_predecessor_knew(inherited: Held) -> None:
    ledger = Ledger()
    main = Holding(frozenset(["G::1"]), Evidence.RECORD, proven=True)
    ledger.assign(ContainerRef(POD, "main"), ContainerKind.MAIN, CORE, main)
    inherit(ledger, inherited)
    assert owned(ledger) == {"a/main": {"G::1"}}
    check(ledger)


def test_both_resources_are_inherited_each_for_itself() -> None:
    ledger = Ledger()
    ledger.assign(
        ContainerRef(POD, "c"),
        ContainerKind.MAIN,
        MEMORY,
        Holding(frozenset(["G::4"]), Evidence.RECORD, proven=True),
    )
    inherit(ledger, held(POD, "c", ContainerKind.MAIN, "G::1"))
    assert owned(ledger) == {"a/c": {"G::1"}}
    assert ledger.holding(ContainerRef(POD, "c"), MEMORY) is not None
