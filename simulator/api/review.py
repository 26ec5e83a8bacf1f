"""AdmissionReview v1: build requests and parse responses. Pure."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.api.errors import StatusError
from simulator.api.resources import Json, RequestTarget
from simulator.api.webhooks import Operation

_USER: Json = {"username": "system:admin", "groups": ["system:masters", "system:authenticated"]}
"""The user of every request: the simulation has no authentication."""


class InvalidResponse(ValueError):
    """The API server cannot use a webhook's response."""


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """A request on its way through admission.

    Attributes:
        target: the object; for a subresource, its parent object.
        operation: what the request does.
        kind: apiVersion and kind of the object in the request.
        old: the object before, if there is one.
        dry_run: whether nothing is stored.
    """

    target: RequestTarget
    operation: Operation
    kind: tuple[str, str]
    old: Json | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """A webhook's response.

    Attributes:
        allowed: whether the webhook allows the request.
        patch: a JSON patch, ``None`` for no change.
        status: code, reason and message of a denial.
        warnings: texts for the user.
    """

    allowed: bool
    patch: object | None
    status: Json
    warnings: tuple[str, ...]


def review_request(request: ReviewRequest, obj: Json | None, *, uid: str) -> Json:
    """Build the ``request`` of a review."""
    target, resource = request.target, request.target.resource
    group, _, version = request.kind[0].rpartition("/")
    kind = {"group": group, "version": version, "kind": request.kind[1]}
    options: Json = {
        "kind": f"{request.operation.title()}Options",
        "apiVersion": "meta.k8s.io/v1",
    }
    plural = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    body: Json = {
        "uid": uid,
        "kind": kind,
        "resource": plural,
        "requestKind": kind,
        "requestResource": plural,
    }
    if target.subresource:
        body["subResource"] = body["requestSubResource"] = target.subresource
    if target.name:
        body["name"] = target.name
    if target.namespace:
        body["namespace"] = target.namespace
    return body | {
        "operation": request.operation,
        "userInfo": _USER,
        "object": obj,
        "oldObject": request.old,
        "dryRun": request.dry_run,
        "options": options | ({"dryRun": ["All"]} if request.dry_run else {}),
    }


def review(body: Json) -> bytes:
    """Return the HTTP body with the ``request`` *body*."""
    return json.dumps(
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body}
    ).encode()


def read_response(body: bytes, *, uid: str, mutating: bool) -> WebhookResponse:
    """Parse the body of a response.

    Raises:
        InvalidResponse: the API server would not accept it.
    """
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidResponse(f"invalid character in the response: {error}") from error
    if not isinstance(decoded, dict) or decoded.get("kind") != "AdmissionReview":
        raise InvalidResponse(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview"
        )
    response = decoded.get("response")
    if not isinstance(response, Mapping):
        raise InvalidResponse("webhook response was absent")
    if response.get("uid") != uid:
        raise InvalidResponse(f'expected response.uid="{uid}", got "{response.get("uid") or ""}"')
    return WebhookResponse(
        allowed=response.get("allowed") is True,
        patch=_read_patch(response, mutating=mutating),
        status=dict(response.get("status") or {}),
        warnings=tuple(str(each) for each in response.get("warnings") or ()),
    )


def denial(webhook: str, status: Json) -> StatusError:
    """Turn a webhook's denial into the error for the user."""
    explanation = status.get("message") or status.get("reason")
    denied = f'admission webhook "{webhook}" denied the request'
    code = status.get("code")
    return StatusError(
        code if isinstance(code, int) and code >= 400 else 400,
        str(status.get("reason") or ""),
        f"{denied}: {explanation}" if explanation else f"{denied} without explanation",
        status.get("details"),
    )


def _read_patch(response: Mapping[str, object], *, mutating: bool) -> object | None:
    patch, kind = response.get("patch"), response.get("patchType")
    if not patch and kind is None:
        return None
    if not mutating:
        raise InvalidResponse("validating webhook may not return response.patch")
    if not patch or kind != "JSONPatch":
        raise InvalidResponse(f'webhook returned invalid response.patchType of "{kind}"')
    try:
        decoded: object = json.loads(base64.b64decode(str(patch), validate=True))
    except ValueError as error:
        raise InvalidResponse(f"response.patch cannot be decoded: {error}") from error
    return decoded
