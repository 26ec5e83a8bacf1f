"""The errors of the extender, by cause.

::

    Exception
    ├── common.serving.errors.BadRequest   the client: a request that kube-scheduler would not send
    ├── BindError                          the cluster: this pod is not bound now
    └── common.errors.SettingsError        the operator: found before the server starts

The text of a :class:`BindError` is the ``Error`` of the response.
"""


class BindError(Exception):
    """The pod is not bound, or it is unknown whether it is; the text has the reason."""
