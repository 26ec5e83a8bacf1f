"""The errors of requests to the API server.

::

    Exception
    ├── CredentialsError   for the admin: neither kubeconfig nor service account can be used
    ├── Gone               the API server no longer has the start of a watch or list (410)
    ├── Rejected           the API server has rejected the request (4xx)
    └── common.errors.Unavailable   no usable response: it may or may not have been carried out
        └── TooManyRequests         the API server refuses it for now (429)
"""

from common.errors import Unavailable


class CredentialsError(ValueError):
    """The credentials cannot be used; the message names the file."""


class Gone(Exception):
    """The API server no longer has the start of the watch or list (410): list again."""


class Rejected(Exception):
    """The API server has rejected the request with an HTTP *status*, 4xx."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class TooManyRequests(Unavailable):
    """The API server refuses the request for now (429): it was not carried out."""


REQUEST_ERRORS = (Gone, Rejected, Unavailable)
"""All that a request may raise, for programs that try it again later, or do without it."""
