"""What kube-scheduler asks is read the same, whether its pod was read before or not."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from placement.cluster.pods import parse_pod
from scheduler.decisions import Filtered
from scheduler.errors import BadRequest
from scheduler.protocol import ExtenderArgs, decode_args, encode_filtered
from scheduler.questions import Questions
from tests.placement.cluster.builders import NAMES, make_pod

POD = make_pod("a", (60, 4))
ODD = {**POD, "x": {"a": 1, "Nodes": None, "NodeNames": ["no"]}}
TEXT = make_pod("b", (10, 4), annotations={"a": ',"Nodes":null,"NodeNames":["no"]}'})


def go(*names: str, pod: Any = POD) -> bytes:
    """Write as Go does."""
    document = {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
    return json.dumps(document, separators=(",", ":")).encode()


GOOD = [
    go("n1"),
    go("n2", "n1"),
    go(),
    go("n1", pod=ODD),
    go("n1", pod=TEXT),
    json.dumps({"NodeNames": ["n1"], "Pod": ODD}, separators=(",", ":")).encode(),
    json.dumps({"Pod": POD, "Nodes": {"items": []}, "NodeNames": None}).encode(),
    go("n1", pod=make_pod("plain")),
]
BAD = [
    go("")[:-1],
    go("n1")[:-1],
    go("n1") + b"}",
    go("n1", pod={"metadata": 1}),
    go("n1", pod=ODD).removesuffix(b',"Nodes":null,"NodeNames":["n1"]}'),
    go("n1").replace(b'"Nodes":null', b'"Nodes":1'),
    b'{"Pod":,"Nodes":null,"NodeNames":["n1"]}',
    b',"Nodes":null,"NodeNames":["n1"]}',
]


@pytest.mark.parametrize("first", GOOD)
def test_a_pod_that_was_read_before_is_read_the_same(first: bytes) -> None:
    questions = Questions(NAMES)
    for body in (first, *GOOD, first):
        pod, args = questions.read(body)
        whole = decode_args(body)
        assert pod == parse_pod(whole.pod, NAMES)
        assert (args.names, args.nodes) == (whole.names, whole.nodes)


@pytest.mark.parametrize("body", BAD)
def test_what_is_malformed_is_refused_in_the_same_words_whatever_was_read(body: bytes) -> None:
    questions = Questions(NAMES)
    for each in GOOD:
        questions.read(each)
    with pytest.raises(BadRequest) as whole:
        decode_args(body)
    for _ in range(2):
        with pytest.raises(BadRequest) as found:
            questions.read(body)
        assert str(found.value) == str(whole.value)


def test_only_so_many_pods_are_remembered() -> None:
    questions = Questions(NAMES)
    for number in range(40):
        pod, _ = questions.read(go("n1", pod=make_pod(f"p{number}", (10, 1))))
        assert pod is not None
        assert pod.name == f"p{number}"
    assert len(questions._pods) == 16


def said(read: Any, body: bytes) -> object:
    try:
        return read(body)
    except BadRequest as error:
        return str(error)


@example(between='"n"n","nn')
@given(st.text('n1-."\\,/ \x00\x7f\u00e9[]', max_size=12) | st.just("n" * 254).map('"{}"'.format))
def test_names_are_read_quickly_as_they_are_read_thoroughly(between: str) -> None:
    body = go(pod=POD).replace(b"[]", f"[{between}]".encode())

    quick = said(lambda each: Questions(NAMES).read(each)[1], body)

    names = quick.names if isinstance(quick, ExtenderArgs) else quick
    assert names == said(lambda each: decode_args(each).names, body)
    if isinstance(quick, ExtenderArgs) and quick.written:
        assert quick.written == json.dumps(quick.names, separators=(",", ":")).encode()


@given(st.lists(st.text('n1-."\\\x00\u00e9', min_size=1, max_size=3), max_size=3))
def test_the_nodes_of_an_answer_are_read_as_if_they_were_new(names: list[str]) -> None:
    questions = Questions(NAMES)
    _, expected = encode_filtered(decode_args(go("n1")), Filtered(tuple(names)))
    questions.expect(expected)
    body = go(*names)

    quick = said(lambda each: questions.read(each)[1].names, body)

    assert quick == said(lambda each: decode_args(each).names, body)
