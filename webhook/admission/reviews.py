"""AdmissionReview v1: strict reading of requests, writing of responses."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.serving.errors import BadRequest
from common.strict_json import decode_strictly
from common.text import cut
from contract.errors import FieldError, FieldFault, quote
from contract.fields import Fields
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
    review = _ReviewFields("", document, BadRequest)
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if review.raw(field) != expected:
            raise review.error(field, f"must be {expected}")
    request = review.child("request", review.OBJECT)
    uid = request.required_text("uid")
    if len(uid) > _LONGEST_UID:
        raise request.error("uid", f"must be at most {_LONGEST_UID} characters")
    operation = request.required_text("operation")
    reviewed, replaced = request.mapping("object"), request.mapping("oldObject")
    if reviewed is None and operation in {"CREATE", "UPDATE"}:
        raise request.error("object", f"{operation} needs the object")
    return Review(
        uid=uid,
        target=_decode_target(request),
        operation=operation,
        namespace=request.text("namespace"),
        name=request.text("name"),
        dry_run=request.flag("dryRun"),
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
                {"reason": _CAUSES[error.fault], "message": text, "field": error.path}
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


class _ReviewFields(Fields):
    """The fields of a review."""

    __slots__ = ()

    def error(self, name: str, rule: str) -> Exception:
        absent = self.raw(name) is None
        return self.required(name, rule) if absent else super().error(name, rule)

    def required(self, name: str, rule: str) -> Exception:
        return BadRequest(f"{self.at(name)}: Required value: {rule}")

    def required_text(self, name: str) -> str:
        if found := self.text(name):
            return found
        raise self.required(name, self.TEXT)


def _decode_target(request: _ReviewFields) -> ReviewedResource:
    resource, kind = request.child("resource"), request.child("kind")
    given = resource if resource.values else kind
    if not given.values:
        raise request.required("resource", "the resource or the kind of the reviewed object")
    return ReviewedResource(
        group=given.text("group"),
        version=given.text("version"),
        resource=resource.text("resource"),
        kind=kind.text("kind"),
        subresource=request.text("subResource"),
    )
