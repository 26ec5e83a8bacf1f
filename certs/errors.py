"""The errors, by whose fault they are.

::

    CertsError               one line for the person at the keyboard
    ├── InvalidField         an argument breaks a rule: names field, value and rule
    ├── InvalidCertificate   what was read is not a certificate, or not one that can sign
    ├── StoreError           the place refuses: it exists, is full, cannot be read
    └── ClusterError         the API server refuses, or does not answer
        ├── Foreign          what is there is somebody else's: it is left alone
        └── Conflict         somebody else was faster, or nobody answered: look again
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


class StoreError(CertsError):
    """Files cannot be written or read."""


class ClusterError(CertsError):
    """The API server refuses, does not answer, or holds something that cannot be used."""


class Foreign(ClusterError):
    """An object belongs to somebody else."""


class Conflict(ClusterError):
    """An object has changed since it was read, or may have: look again before the next write."""
