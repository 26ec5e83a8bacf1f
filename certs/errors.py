"""The errors of the package, by cause.

::

    CertsError               one line for the user; itself: a file exists, or cannot be used
    ├── InvalidField         an argument breaks a rule: has field, value and rule
    ├── InvalidCertificate   not a certificate, or not one that can sign
    └── ClusterError         the API server rejects a request, or does not respond
        ├── Foreign          the object belongs to another owner: it is not changed
        └── Conflict         the object has changed, or may have: read it again
"""

from common.text import cut

_LONGEST_SHOWN = 80


class CertsError(Exception):
    """Base of every error this package raises; its text is one clear line."""


class InvalidField(CertsError):
    """An argument breaks a rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        shown = cut(value, _LONGEST_SHOWN) if isinstance(value, str) else value
        super().__init__(f"{field}: Invalid value: {shown!r}: {rule}")


class InvalidCertificate(CertsError):
    """Bytes that should have been a PEM certificate or key are not."""


class ClusterError(CertsError):
    """The API server rejects a request, does not respond, or has an unusable object."""


class Foreign(ClusterError):
    """An object belongs to another owner."""


class Conflict(ClusterError):
    """An object has changed since it was read, or may have: read it before the next write."""
