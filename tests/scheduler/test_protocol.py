"""kube-scheduler's JSON is read; any other body is reported in one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.serving.errors import BadRequest
from scheduler import protocol
from scheduler.decisions import FilterResult
from scheduler.protocol import (
    decode_args,
    decode_binding,
    decode_preemption,
    encode_filtered,
    encode_preemption,
    encode_scores,
)
from tests.agent.builders import patient
from tests.examples import any_json
from tests.placement.cluster.builders import Json, make_node, make_pod

POD = make_pod("a", (30, 4))
ARGS = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}
BINDING = {"PodName": "a", "PodNamespace": "default", "PodUID": "u-a", "Node": "n1"}


def body(document: object) -> bytes:
    return json.dumps(document).encode()


def test_whole_nodes_are_read() -> None:
    nodes = {"metadata": {"resourceVersion": "1"}, "items": [make_node("n1")]}
    args = decode_args(body({**ARGS, "Nodes": nodes, "NodeNames": None}))
    assert args.names == ("n1",)
    assert args.nodes == (make_node("n1"),)
    assert decode_args(body({"Pod": POD, "Nodes": {"items": None}})).nodes == ()


def _of_pod(**changed: object) -> bytes:
    return body({**ARGS, "Pod": {"metadata": {}, **changed}})


def _of_node(**changed: object) -> bytes:
    return body({"Pod": POD, "Nodes": {"items": [{"metadata": {"name": "n"}, **changed}]}})


NULL, LIST, SEVEN = "Invalid value: null", "Invalid value: a list", "Invalid value: 7"
MAPPING, NODE = "must be a mapping", "must be the name of a node"
ONE = "NodeNames, Nodes: must be exactly one of them"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"{", "body: is not JSON: Expecting property name enclosed in double quotes"),
        (b"[]", f"body: {LIST}: must be ExtenderArgs"),
        (body({"pod": POD}), 'body: "pod" is not a field of ExtenderArgs: must be Pod, Nodes'),
        (body({"NodeNames": []}), f"Pod: {NULL}: must be a pod"),
        (body({**ARGS, "Pod": {}}), f"Pod.metadata: {NULL}: {MAPPING}"),
        (_of_pod(metadata={"uid": 7}), f"Pod.metadata.uid: {SEVEN}: must be text"),
        (
            _of_pod(metadata={"annotations": {"a": 7}}),
            f"Pod.metadata.annotations[a]: {SEVEN}: must",
        ),
        (_of_pod(spec=7), f"Pod.spec: {SEVEN}: {MAPPING}"),
        (_of_pod(spec={"nodeName": 7}), f"Pod.spec.nodeName: {SEVEN}: must be text"),
        (body({"Pod": POD}), f"{ONE}, found neither"),
        (body({**ARGS, "Nodes": {"items": []}}), f"{ONE}, found both"),
        (body({**ARGS, "NodeNames": "n1"}), 'NodeNames: Invalid value: "n1": must be a list'),
        (body({**ARGS, "NodeNames": ["n1", None]}), f"NodeNames[1]: {NULL}: {NODE}"),
        (body({**ARGS, "NodeNames": ["a,b"]}), f'NodeNames[0]: Invalid value: "a,b": {NODE}'),
        (body({"Pod": POD, "Nodes": []}), f"Nodes: {LIST}: must be a list of nodes"),
        (body({"Pod": POD, "Nodes": {"items": {}}}), "Nodes.items: Invalid value: a mapping"),
        (body({"Pod": POD, "Nodes": {"items": [7]}}), f"Nodes.items[0]: {SEVEN}: must be a node"),
        (_of_node(metadata={}), f"Nodes.items[0].metadata.name: {NULL}: must be text of 1 to 253"),
        (
            _of_node(status={"allocatable": 7}),
            "Nodes.items[0].status.allocatable: Invalid value: 7",
        ),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(sent: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        decode_args(sent)
    assert str(refused.value).startswith(message)


def test_victims_are_read_and_sent_back() -> None:
    nodes: Json = {"n1": {"Pods": [{"UID": "u-1"}], "NumPDBViolations": 2}, "n2": {"Pods": []}}
    args = decode_preemption(body({"Pod": POD, "NodeNameToMetaVictims": nodes}))
    assert (args.victims, args.violations) == ({"n1": ("u-1",), "n2": ()}, {"n1": 2, "n2": 0})
    nodes["n2"]["NumPDBViolations"] = 0
    assert json.loads(encode_preemption(args)) == {"NodeNameToMetaVictims": nodes}
    assert json.loads(encode_preemption(None)) == {"NodeNameToMetaVictims": {}}
    whole = {"n1": {"Pods": [make_pod("a", (30, 4))], "NumPDBViolations": 0}}
    sent = body({"Pod": POD, "NodeNameToVictims": whole, "NodeNameToMetaVictims": None})
    assert decode_preemption(sent).victims == {"n1": ("u-a",)}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], f"NodeNameToMetaVictims: {LIST}: {MAPPING}"),
        ({"n1": None}, f"NodeNameToMetaVictims[n1]: {NULL}: must have a list of pods"),
        ({"n1": {"Pods": [7]}}, "NodeNameToMetaVictims[n1]: Invalid value: a mapping: must have"),
        ({"n1": {"Pods": [{}]}}, "NodeNameToMetaVictims[n1].Pods[0]: Invalid value: a mapping"),
        ({"n1": {"Pods": [{"UID": 7}]}}, "NodeNameToMetaVictims[n1].Pods[0]: Invalid value: a"),
        (
            {"n1": {"Pods": [], "NumPDBViolations": "1"}},
            'NodeNameToMetaVictims[n1].NumPDBViolations: Invalid value: "1": must be a number',
        ),
    ],
)
def test_invalid_victims_are_reported_in_one_line(nodes: object, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        decode_preemption(body({"Pod": POD, "NodeNameToMetaVictims": nodes}))
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("field", list(BINDING))
@pytest.mark.parametrize("value", [None, "", 7, "x" * 254])
def test_a_binding_needs_all_its_fields(field: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"^{field}: Invalid value: .*: must be text of 1 to 253"):
        decode_binding(body({**BINDING, field: value}))


def test_too_large_bodies_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match=r"^body: must be at most 16384 bytes$"):
        decode_binding(b" " * 20_000)
    monkeypatch.setattr(protocol, "LARGEST_NAMES", 10)
    with pytest.raises(BadRequest, match=r"^body: must be at most 10 bytes with NodeNames"):
        decode_args(body(ARGS))


def test_the_filter_response_has_the_form_of_the_request() -> None:
    found = FilterResult(("n2",), {"n1": "full"}, {"n3": "never"})
    rest = {
        "FailedNodes": {"n1": "full"},
        "FailedAndUnresolvableNodes": {"n3": "never"},
        "Error": "",
    }
    by_name = json.loads(encode_filtered(decode_args(body(ARGS)), found))
    assert by_name == {"Nodes": None, "NodeNames": ["n2"], **rest}
    nodes = {"metadata": {"resourceVersion": "1"}, "items": [make_node("n1"), make_node("n2")]}
    args = decode_args(body({"Pod": POD, "Nodes": nodes}))
    whole = json.loads(encode_filtered(args, found))
    kept = {"metadata": {"resourceVersion": "1"}, "items": [make_node("n2")]}
    assert whole == {"Nodes": kept, "NodeNames": None, **rest}


@given(st.lists(st.tuples(st.text('n1-."\\,\x00\x7f\u00e9', max_size=3), st.integers(0, 10))))
def test_responses_are_json_whatever_names_contain(scored: list[tuple[str, int]]) -> None:
    names = [name for name, _ in scored]
    failed = dict.fromkeys(names, "full")

    filtered = json.loads(
        encode_filtered(decode_args(body(ARGS)), FilterResult(tuple(names), failed))
    )
    scores = json.loads(encode_scores(names, [score for _, score in scored]))

    assert (filtered["NodeNames"], filtered["FailedNodes"]) == (names, failed)
    assert [(each["Host"], each["Score"]) for each in scores] == scored


_json = any_json(
    *("Pod", "Nodes", "NodeNames", "metadata", "spec", "items", "name", "uid"),
    *("PodName", "PodUID", "Node", "annotations", "containers", "status", "x"),
    *("NodeNameToMetaVictims", "NodeNameToVictims", "Pods", "UID", "NumPDBViolations"),
)


@patient
@given(st.binary(max_size=50) | _json.map(lambda document: json.dumps(document).encode()))
def test_any_body_is_read_or_refused(sent: bytes) -> None:
    for decode in (decode_args, decode_binding, decode_preemption):
        try:
            decode(sent)
        except BadRequest as error:
            text = str(error)
        else:
            text = "read"
        assert text.isprintable()
