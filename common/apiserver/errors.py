"""What a request to the API server may end with.

::

    Exception
    ├── CredentialsError   the admin's: neither kubeconfig nor service account can be used
    ├── Gone               the starting point of a watch or list is no longer kept (410)
    ├── Rejected           the API server understood and said no (4xx)
    └── common.errors.Unavailable   no usable answer: nobody knows whether it was done
"""


class CredentialsError(ValueError):
    """The credentials cannot be used; the message names the file."""


class Gone(Exception):
    """The watch's starting point is no longer kept (410): list again."""


class Rejected(Exception):
    """The API server understood and said no.

    Attributes:
        status: the HTTP status, 4xx.
    """

    def __init__(self, status: int, message: str) -> None:
        """Keep the status beside the message."""
        self.status = status
        super().__init__(message)
