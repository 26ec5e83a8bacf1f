import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.serving.errors import BadRequest
from contract.errors import FieldError
from webhook.admission.decision import Decision
from webhook.admission.reviews import Review, ReviewedResource, decode_review, encode_review

Json = dict[str, Any]
MISSING = object()
VERSION = "must be admission.k8s.io/v1"
LONGEST = "must be at most 128 characters"


def _encode(document: object) -> bytes:
    return json.dumps(document).encode()


def test_a_review_is_read(review: Json, pod: Json) -> None:
    assert decode_review(_encode(review)) == Review(
        uid="705ab4f5-6393-11e8-b7cc-42010a800002",
        target=ReviewedResource("", "v1", "pods", "Pod", ""),
        operation="CREATE",
        namespace="team",
        name="train",
        dry_run=False,
        object=pod,
    )


@pytest.mark.parametrize("field", ["kind", "name", "namespace", "dryRun", "oldObject", "userInfo"])
def test_fields_that_no_decision_needs_may_be_missing(review: Json, field: str) -> None:
    del review["request"][field]
    assert decode_review(_encode(review)).target.resource == "pods"


def test_an_update_has_the_object_before_and_a_deletion_no_other(review: Json, pod: Json) -> None:
    review["request"] |= {"operation": "UPDATE", "oldObject": {"metadata": {"name": "old"}}}
    decoded = decode_review(_encode(review))
    assert (decoded.object, decoded.old_object) == (pod, {"metadata": {"name": "old"}})
    review["request"] |= {"operation": "DELETE", "object": None}
    assert decode_review(_encode(review)).object is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("apiVersion", "v1", f'Invalid value: "v1": {VERSION}'),
        ("kind", "Pod", 'Invalid value: "Pod": must be AdmissionReview'),
        ("request", MISSING, "Required value: must be a mapping"),
        ("request.uid", MISSING, "Required value: must be text"),
        ("request.uid", "x" * 129, f'Invalid value: "{"x" * 40}"..."{"x" * 40}": {LONGEST}'),
        ("request.object", MISSING, "Required value: CREATE needs the object"),
        ("request.object", "pod", 'Invalid value: "pod": must be a mapping'),
        ("request.namespace", 1, "Invalid value: 1: must be text"),
        ("request.dryRun", "no", 'Invalid value: "no": must be true or false'),
    ],
)
def test_a_review_with_one_bad_field_is_refused_by_its_name(
    review: Json, path: str, value: object, message: str
) -> None:
    *parents, field = path.split(".")
    parent_object = review
    for parent in parents:
        parent_object = parent_object[parent]
    if value is MISSING:
        del parent_object[field]
    else:
        parent_object[field] = value
    with pytest.raises(BadRequest) as caught:
        decode_review(_encode(review))
    assert str(caught.value) == f"{path}: {message}"
    assert caught.value.status == 400


def test_a_review_without_resource_and_kind_is_refused(review: Json) -> None:
    review["request"] |= {"resource": None, "kind": None}
    with pytest.raises(BadRequest) as caught:
        decode_review(_encode(review))
    assert str(caught.value).startswith("request.resource: Required value: the resource or the ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body: is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff{}", "body: is not UTF-8: byte 0 is wrong"),
        (b'{"a": "\\ud800"}', "body: is not Unicode: it has half of a surrogate pair"),
        (b'{"a": NaN}', "body: is not JSON: NaN is not a number"),
        (b"9" * 5000, "body: is not JSON: it has a number too long to read"),
        (b"[" * 100_000 + b"]" * 100_000, "body: is nested too deeply"),
        (b"[]", "body: Invalid value: a list: must be an AdmissionReview"),
        (b"{}", "apiVersion: Required value: must be admission.k8s.io/v1"),
    ],
)
def test_a_body_that_is_no_review_is_refused_in_one_line(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_review(body)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_surrogate_pair_is_a_character_and_the_last_of_equal_keys_counts(review: Json) -> None:
    review["request"]["name"] = "\U0001f600"
    body = _encode(review).replace(b'"uid"', b'"uid": "first", "uid"')
    assert b"\\ud83d" in body
    decoded = decode_review(body)
    assert (decoded.name, decoded.uid) == ("\U0001f600", review["request"]["uid"])


def _response(review: Json, verdict: Decision) -> Json:
    decoded: Json = json.loads(encode_review(decode_review(_encode(review)), verdict))
    assert (decoded["apiVersion"], decoded["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Json = decoded["response"]
    return response


def test_a_plain_permission_has_no_optional_fields(review: Json) -> None:
    assert _response(review, Decision()) == {"uid": review["request"]["uid"], "allowed": True}


def test_a_patch_is_encoded_in_base64(review: Json) -> None:
    operation = {"op": "add", "path": "/metadata/annotations/ä", "value": "1"}
    response = _response(review, Decision(patch=(operation,), warnings=("careful",)))
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == [operation]
    assert response["warnings"] == ["careful"]


def test_a_denial_is_worded_as_the_api_server_words_its_own(review: Json) -> None:
    errors = (
        FieldError("spec.a", "must be even", "even", '"3"'),
        FieldError("spec.b", "say b", "b"),
    )
    assert _response(review, Decision(errors=errors)) == {
        "uid": review["request"]["uid"],
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 422,
            "reason": "Invalid",
            "message": ('spec.a: Invalid value: "3": must be even; spec.b: Required value: say b'),
            "details": {
                "name": "train",
                "group": "",
                "kind": "Pod",
                "causes": [
                    {"reason": f"FieldValue{reason}", "message": message, "field": field}
                    for reason, message, field in (
                        ("Invalid", 'Invalid value: "3": must be even', "spec.a"),
                        ("Required", "Required value: say b", "spec.b"),
                    )
                ],
            },
        },
    }


def test_the_last_of_very_many_errors_counts_the_rest(review: Json) -> None:
    errors = tuple(FieldError(f"spec.c[{n}]", "say it", "x") for n in range(4000))
    status = _response(review, Decision(errors=errors))["status"]
    causes = status["details"]["causes"]
    assert [each["field"] for each in causes[:99]] == [f"spec.c[{n}]" for n in range(99)]
    assert [each["message"] for each in causes[98:]] == [
        "Required value: say it",
        "and 3901 more errors like these",
    ]
    assert status["message"].endswith("; spec.c[3999]: and 3901 more errors like these")


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"generateName": "train-"}, "train-"),
        ({"name": "own", "generateName": "train-"}, "own"),
        ({}, ""),
        ({"name": 7}, ""),
        ("x", ""),
    ],
)
def test_an_object_without_a_name_has_the_name_in_its_metadata(
    review: Json, metadata: object, name: str
) -> None:
    del review["request"]["name"]
    review["request"]["object"]["metadata"] = metadata
    error = FieldError("spec", "say it", "x")
    assert _response(review, Decision(errors=(error,)))["status"]["details"]["name"] == name


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8")))
def test_any_body_raises_no_other_error(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_review(body)
    assert len(str(caught.value).splitlines()) == 1
