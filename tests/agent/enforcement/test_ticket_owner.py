"""Who a ticket's directory is written down for, and who may have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.pod_view import PodId
from agent.enforcement.ticket_owner import among, decode, is_that, may_be
from tests.agent.builders import pod_id

A, B = pod_id("a"), pod_id("b")
NAMELESS = pod_id("a", "")
UIDS = st.sampled_from(["", "u", "v"])
PODS = st.builds(PodId, st.sampled_from(["n", "m"]), st.sampled_from(["a", "b"]), UIDS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"name": "a", "namesp',
        b"[]",
        b"1",
        b'{"namespace": "n", "name": "a", "uid": "u", "more": ""}',
        b'{"namespace": "n", "name": "a"}',
        b'{"namespace": "n", "name": "a", "uid": 1}',
        b'{"namespace": "", "name": "", "uid": "u"}',
        b'{"namespace": "n", "name": "", "uid": "u"}',
        b"\xff\xfe",
    ],
)
def test_what_does_not_parse_is_nobody(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize(
    ("owner", "pod", "sure", "possible"),
    [
        (A, A, True, True),
        (A, B, False, False),
        (A, pod_id("a", "another"), False, False),
        (A, NAMELESS, False, True),
        (NAMELESS, A, False, True),
        (NAMELESS, NAMELESS, False, True),
        (NAMELESS, B, False, False),
        (A, pod_id("a", namespace="elsewhere"), False, False),
    ],
)
def test_a_uid_that_is_not_known_leaves_it_open(
    owner: PodId, pod: PodId, sure: bool, possible: bool
) -> None:
    assert is_that(owner, pod) is sure
    assert may_be(owner, pod) is possible


@given(PODS, st.lists(PODS))
def test_an_owner_is_among_pods_if_it_may_be_one_of_them(owner: PodId, pods: list[PodId]) -> None:
    assert among(pods)(owner) == any(may_be(owner, pod) for pod in pods)
