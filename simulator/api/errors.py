"""Errors with the messages of the real API server (``apimachinery/pkg/api/errors``)."""

from collections.abc import Iterable, Mapping

from simulator.api.resources import ApiResource, Json


class StatusError(Exception):
    """A request is refused; the response body is a ``Status``.

    Attributes:
        message: the text ``kubectl`` shows.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def body(self) -> Json:
        """Render the ``Status`` object."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = dict(self.details)
        return status | {"code": self.code}


def bad_request(message: str) -> StatusError:
    """Build the error for a request that cannot be parsed."""
    return StatusError(400, "BadRequest", message)


def not_found(resource: ApiResource, name: str) -> StatusError:
    """Build the error for an object that does not exist."""
    return StatusError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', _of(resource, name)
    )


def no_such_path() -> StatusError:
    """Build the error for a path of no known resource."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> StatusError:
    """Build the error for a verb that the path does not support."""
    return StatusError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )


def unsupported_media_type(found: str) -> StatusError:
    """Build the error for a body in a format that is not supported."""
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - "
        f'accepted media types do not include "{found}"',
    )


def already_exists(resource: ApiResource, name: str) -> StatusError:
    """Build the error for creating an object whose name is in use."""
    return StatusError(
        409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _of(resource, name)
    )


def conflict(resource: ApiResource, name: str, reason: str) -> StatusError:
    """Build the error for a write that does not suit the object's state."""
    return StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": {reason}',
        _of(resource, name),
    )


def modified(resource: ApiResource, name: str) -> StatusError:
    """Build the error for a write that is based on an older version."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version "
        "and try again",
    )


def expired(requested: int, oldest: int) -> StatusError:
    """Build the error for a watch that starts before the kept history."""
    return StatusError(410, "Expired", f"too old resource version: {requested} ({oldest})")


def invalid(resource: ApiResource, name: str, errors: Iterable[str]) -> StatusError:
    """Build the error for an invalid object; *errors* are ``path: kind: value: rule``."""
    found = list(errors)
    text = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
    causes = [
        {"field": field, "message": message}
        for field, _, message in (error.partition(": ") for error in found)
    ]
    return StatusError(
        422,
        "Invalid",
        f'{resource.kind} "{name}" is invalid: {text}',
        {"name": name, "kind": resource.kind, "causes": causes},
    )


def internal(message: str) -> StatusError:
    """Build the error for a failure of the server or of a webhook."""
    return StatusError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )


def unavailable() -> StatusError:
    """Build the error with which a server that starts or stops refuses every request."""
    return StatusError(503, "ServiceUnavailable", "the server is currently unable to handle it")


def _of(resource: ApiResource, name: str) -> dict[str, object]:
    details: dict[str, object] = {"name": name, "kind": resource.plural}
    return details | ({"group": resource.group} if resource.group else {})
