from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certs.errors import ClusterError
from certs.issue import Issued
from certs.objects import (
    LABEL,
    LABEL_VALUE,
    SERVING_SINCE,
    Json,
    Kind,
    Origin,
    Purpose,
    bundle_patch,
    new_secret,
    parse_configuration,
    parse_secret,
    with_authority,
    with_serving,
    with_stamp,
    write_stamp,
)

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_what_others_have_added_to_a_secret_is_kept(issued: Issued) -> None:
    obj: Json = {
        "metadata": {"name": "s", "annotations": {"a": "b"}, "labels": {"c": "d"}},
        "type": "Opaque",
        "data": {"more": "YQ=="},
    }
    made = with_stamp(with_authority(obj, issued.authority), NOW)
    assert made["type"] == "Opaque"
    assert made["metadata"]["labels"] == {"c": "d", LABEL: LABEL_VALUE}
    assert made["metadata"]["annotations"] == {"a": "b", SERVING_SINCE: "2030-01-02T03:04:05Z"}
    assert made["data"]["more"] == "YQ=="
    assert obj["data"] == {"more": "YQ=="}


@pytest.mark.parametrize(
    ("obj", "origin"),
    [
        (None, Origin.ABSENT),
        ({}, Origin.EMPTY),
        ({"metadata": {"labels": None}, "data": {"tls.crt": ""}}, Origin.EMPTY),
        ({"metadata": {"labels": {LABEL: "Helm"}}, "data": {"x": "YQ=="}}, Origin.FOREIGN),
        ({"metadata": {"labels": {LABEL: LABEL_VALUE}}}, Origin.OURS),
    ],
)
def test_whose_a_secret_is(obj: Json | None, origin: Origin) -> None:
    assert parse_secret("s", Purpose.SERVING, obj).origin is origin


def test_certificates_in_each_others_place_are_no_pair(issued: Issued) -> None:
    swapped = with_authority(new_secret("a", "n", Purpose.AUTHORITY), issued.serving)
    found = parse_secret("a", Purpose.AUTHORITY, swapped)
    assert (found.pair, found.certificate) == (None, None)
    assert found.problem == "ca.crt: is the certificate of no authority"
    swapped = with_serving(
        new_secret("s", "n", Purpose.SERVING), issued.authority, trusted=(), now=NOW
    )
    problem = parse_secret("s", Purpose.SERVING, swapped).problem
    assert problem == "tls.crt: is the certificate of an authority"


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"data": []}, "secret s: data: must be an object"),
        ({"metadata": 7}, "secret s: metadata: must be an object"),
        ({"metadata": {"labels": "x"}}, "secret s: labels: must be an object"),
    ],
)
def test_what_is_no_secret_is_refused(obj: Json, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_secret("s", Purpose.SERVING, obj)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"webhooks": {"a": 1}}, "webhooks: must be a list"),
        ({"webhooks": [7]}, "webhooks[0].clientConfig: must be an object"),
        ({"webhooks": [{"name": "x"}]}, "webhooks[0].clientConfig: must be an object"),
        ({"metadata": {"annotations": []}}, "annotations: must be an object"),
    ],
)
def test_what_is_no_configuration_is_refused(obj: Json, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_configuration(Kind.MUTATING, "c", obj)
    assert str(caught.value) == f"mutatingwebhookconfiguration c: {message}"


@pytest.mark.parametrize(
    ("annotations", "path", "value"),
    [
        (None, "/metadata/annotations", {"gpu-turnstile/bundle-changed": "2030-01-02T03:04:05Z"}),
        ({"a": "b"}, "/metadata/annotations/gpu-turnstile~1bundle-changed", "2030-01-02T03:04:05Z"),
    ],
)
def test_a_patch_spares_the_annotations_there_are(
    annotations: Json | None, path: str, value: object
) -> None:
    obj: Json = {
        "metadata": {"resourceVersion": "7", "annotations": annotations},
        "webhooks": [{"clientConfig": {}}],
    }
    assert bundle_patch(parse_configuration(Kind.MUTATING, "c", obj), (), NOW) == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": path, "value": value},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ""},
    ]


@given(st.one_of(st.none(), st.text(), st.integers(), st.just("2030-01-01T00:00:00")))
def test_an_annotation_that_is_no_time_dates_nothing(text: object) -> None:
    obj: Json = {"metadata": {"annotations": {SERVING_SINCE: text}}}
    since = parse_secret("s", Purpose.SERVING, obj).since
    assert since is None or since.tzinfo is not None


def test_a_stamp_is_never_before_what_it_dates() -> None:
    assert write_stamp(NOW) == "2030-01-02T03:04:05Z"
    assert write_stamp(NOW.replace(microsecond=1)) == "2030-01-02T03:04:06Z"
