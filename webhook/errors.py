"""Whose fault it is, kept apart.

::

    BadRequest                the sender's: not an AdmissionReview v1; HTTP 4xx, one line
    ├── TooLarge              more than a review can be
    ├── Unverified            not from who may ask
    └── UnsupportedMedia      not plain JSON by its headers
    contract.FieldError       the pod's: a review answered with "denied"
    SettingsError             the operator's: found before the server starts

Anything else is ours: logged with its trace, answered with HTTP 500 and no detail.
"""

from http import HTTPStatus


class BadRequest(Exception):
    """The request is not one this server can review; its text is one line for the sender.

    Attributes:
        status: the HTTP status to answer with.
    """

    status = HTTPStatus.BAD_REQUEST


class TooLarge(BadRequest):
    """The body is longer than any review."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMedia(BadRequest):
    """The body is not what the headers must promise: plain JSON."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class Unverified(BadRequest):
    """The sender did not prove who it is, and has to."""

    status = HTTPStatus.FORBIDDEN


class SettingsError(Exception):
    """The server cannot be started as asked; its text is one line for the operator."""
