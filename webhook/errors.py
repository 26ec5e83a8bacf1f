"""The errors, by whose fault they are.

::

    BadRequest                the sender's: not an AdmissionReview v1; HTTP 4xx, one line
    ├── TooLarge              more than a review can be
    ├── Unverified            the sender has no valid certificate
    └── UnsupportedMedia      the headers do not announce plain JSON
    contract.FieldError       the pod's: a review answered with "denied"
    SettingsError             (common.serving.errors) the operator's: found before the server starts

Anything else is ours: logged with its trace, answered with HTTP 500 and no detail.
"""

from http import HTTPStatus

from common.serving.errors import SettingsError

__all__ = ["BadRequest", "SettingsError", "TooLarge", "UnsupportedMedia", "Unverified"]


class BadRequest(Exception):
    """The request cannot be reviewed; the text is one line for the sender.

    Attributes:
        status: the HTTP status to answer with.
    """

    status = HTTPStatus.BAD_REQUEST


class TooLarge(BadRequest):
    """The body is longer than any review."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMedia(BadRequest):
    """The headers do not announce plain JSON."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class Unverified(BadRequest):
    """The sender has no valid certificate, and needs one."""

    status = HTTPStatus.FORBIDDEN
