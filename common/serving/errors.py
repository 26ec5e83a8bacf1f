"""Errors for requests that cannot be used; the message is one line for the sender."""

from http import HTTPStatus


class BadRequest(Exception):
    """The request breaks a rule; *status* is the HTTP status of the response."""

    status = HTTPStatus.BAD_REQUEST


class TooLarge(BadRequest):
    """The body is longer than any valid request."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMedia(BadRequest):
    """The headers announce something other than plain JSON."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class Unverified(BadRequest):
    """The sender needs a valid client certificate and has none."""

    status = HTTPStatus.FORBIDDEN
