"""The errors, by whose fault they are.

::

    Exception
    ├── common.serving.errors.BadRequest   the sender's: not what kube-scheduler sends
    ├── BindError       nobody's or the cluster's: this pod is not bound now; answered as ``Error``
    └── common.errors.SettingsError   the operator's: found before the server starts
"""


class BindError(Exception):
    """The pod is not bound, or nobody knows yet; the text says why."""
