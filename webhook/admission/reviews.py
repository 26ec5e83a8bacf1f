"""AdmissionReview v1: strict reading of requests, writing of responses."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from common.serving.errors import BadRequest
from common.strict_json import decode_strictly
from common.text import cut
from contract.errors import FieldError, FieldFault, quote
from webhook.admission.decision import Decision, bounded
from webhook.admission.patches import encode_patch

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
LARGEST_BODY = 8 * 2**20
"""The API server accepts objects up to 3 MiB, and a review contains the object up to twice."""

_MOST_ERRORS = 100
"""Most errors in a response: the API server does not read one of several MiB."""

_LONGEST_UID = 128
_LONGEST_OPERATION = 16


@dataclass(frozen=True, slots=True)
class ReviewedResource:
    """The resource and kind of the reviewed object; parts that the request lacks are empty.

    Attributes:
        group: API group, empty for core.
        version: API version.
        resource: plural name such as ``pods``; empty if the request has only the kind.
        kind: such as ``Pod``; empty if the request has only the resource.
        subresource: such as ``binding``; empty for the object itself.
    """

    group: str
    version: str
    resource: str
    kind: str
    subresource: str

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Group, version, resource (the kind if the request has only that), and subresource."""
        return self.group, self.version, self.resource or self.kind, self.subresource

    def __str__(self) -> str:
        """Return it as ``group/version/resource/subresource``."""
        return "/".join(part for part in self.parts if part)


@dataclass(frozen=True, slots=True)
class Review:
    """The request of an AdmissionReview.

    Attributes:
        uid: UID of the request; the response repeats it.
        target: resource and kind of the object.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        namespace: the object's; empty for cluster-wide objects.
        name: the object's; empty if the API server generates it.
        dry_run: whether nothing will be stored.
        object: the object as decoded JSON; ``None`` if the operation has none.
        old_object: the object that is replaced; ``None`` if there is none.
    """

    uid: str
    target: ReviewedResource
    operation: str
    namespace: str
    name: str
    dry_run: bool
    object: Mapping[str, Any] | None
    old_object: Mapping[str, Any] | None = None


def decode_review(body: bytes) -> Review:
    """Read the request from a body.

    Raises:
        BadRequest: the body is not an AdmissionReview v1 with a request.
    """
    document = decode_strictly(body)
    if not isinstance(document, dict):
        raise BadRequest(f"body: Invalid value: {quote(document)}: must be an {KIND}")
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != expected:
            _refuse(field, document.get(field), f"must be {expected}")
    request = document.get("request")
    if not isinstance(request, dict):
        _refuse("request", request, "must be a mapping")
    uid = _text(request, "uid", required=True)
    if len(uid) > _LONGEST_UID:
        _refuse("request.uid", uid, f"must be at most {_LONGEST_UID} characters")
    operation = _text(request, "operation", required=True)
    reviewed, replaced = request.get("object"), request.get("oldObject")
    for field, value in (("object", reviewed), ("oldObject", replaced)):
        if value is not None and not isinstance(value, dict):
            _refuse(f"request.{field}", value, "must be a mapping")
    if reviewed is None and operation in {"CREATE", "UPDATE"}:
        _refuse("request.object", None, f"{operation} needs the object")
    dry_run = request.get("dryRun")
    if dry_run is not None and not isinstance(dry_run, bool):
        _refuse("request.dryRun", dry_run, "must be true or false")
    return Review(
        uid=uid,
        target=_decode_target(request),
        operation=operation,
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        dry_run=bool(dry_run),
        object=reviewed,
        old_object=replaced,
    )


def allow_unchecked(review: Review, rule: str) -> Decision:
    """Allow a review that the webhook configuration should not send, with a warning about that."""
    sent = f"{cut(review.operation, _LONGEST_OPERATION)} of {review.target}"
    return Decision(warnings=bounded([f"{rule}: {sent} is allowed unchecked"]))


def encode_review(review: Review, decision: Decision) -> bytes:
    """Encode the response to *review*."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": decision.allowed}
    if decision.errors:
        response["status"] = _status(review, decision.errors)
    if decision.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(encode_patch(decision.patch)).decode("ascii")
    if decision.warnings:
        response["warnings"] = list(decision.warnings)
    document = {"apiVersion": API_VERSION, "kind": KIND, "response": response}
    return _ENCODER.encode(document).encode("ascii")


def _status(review: Review, errors: tuple[FieldError, ...]) -> dict[str, Any]:
    """Build the status of a denial like the API server does (``errors.NewInvalid``).

    ``kubectl`` shows the causes, each on a line, and not the message. Events, controllers and
    older clients show the message. Of very many errors the last one counts the rest.
    """
    texts = [(error, str(error).removeprefix(f"{error.path}: ")) for error in errors]
    if len(texts) > _MOST_ERRORS:
        more = len(texts) - (_MOST_ERRORS - 1)
        texts[_MOST_ERRORS - 1 :] = [(errors[-1], f"and {more} more errors like these")]
    return {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": "; ".join(f"{error.path}: {text}" for error, text in texts),
        "details": {
            "name": review.name or _own_name(review.object),
            "group": review.target.group,
            "kind": review.target.kind,
            "causes": [
                {
                    "reason": _CAUSES[error.fault],
                    "message": text,
                    "field": error.path,
                }
                for error, text in texts
            ],
        },
    }


def _own_name(obj: Mapping[str, Any] | None) -> str:
    metadata = (obj or {}).get("metadata")
    if not isinstance(metadata, Mapping):
        return ""
    found = metadata.get("name") or metadata.get("generateName")
    return found if isinstance(found, str) else ""


_CAUSES = {FieldFault.INVALID: "FieldValueInvalid", FieldFault.REQUIRED: "FieldValueRequired"}


# Made once: json.dumps with options makes a new encoder at each call.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _decode_target(request: Mapping[str, Any]) -> ReviewedResource:
    resource, kind = (_mapping(request, field) for field in ("resource", "kind"))
    if not resource and not kind:
        _refuse("request.resource", None, "the resource or the kind of the reviewed object")
    given, path = (resource, "request.resource") if resource else (kind, "request.kind")
    return ReviewedResource(
        group=_text(given, "group", path=path),
        version=_text(given, "version", path=path),
        resource=_text(resource, "resource", path="request.resource"),
        kind=_text(kind, "kind", path="request.kind"),
        subresource=_text(request, "subResource"),
    )


def _mapping(request: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = request.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse(f"request.{field}", value, "must be a mapping")
    return value


def _text(
    mapping: Mapping[str, Any], field: str, *, path: str = "request", required: bool = False
) -> str:
    value = mapping.get(field)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        _refuse(f"{path}.{field}", None if value == "" else value, "must be text")
    return value


def _refuse(field: str, value: object, rule: str) -> NoReturn:
    fault = "Required value" if value is None else f"Invalid value: {quote(value)}"
    raise BadRequest(f"{field}: {fault}: {rule}")
