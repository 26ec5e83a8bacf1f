"""The errors, by whose fault they are.

::

    Exception
    ├── BadRequest      the sender's: not what kube-scheduler sends; answered as ``Error``
    │   └── TooLarge    more than a scheduler can mean
    ├── BindError       nobody's or the cluster's: this pod is not bound now; answered as ``Error``
    └── common.serving.errors.SettingsError   the operator's: found before the server starts
"""


class BadRequest(Exception):
    """The request is not one of kube-scheduler's; the text is one line for the sender."""


class TooLarge(BadRequest):
    """The body is longer than any request of a scheduler."""


class BindError(Exception):
    """The pod is not bound, or nobody knows yet; the text says why."""
