"""What the model refuses.

::

    ValueError
    └── InvalidManifest   the user's: no pod, no template, or no request for GPUs
"""


class InvalidManifest(ValueError):
    """A manifest of which it cannot be said whether it fits; the message says why."""
