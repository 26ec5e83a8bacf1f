"""The webhook's routes, and what each of its processes serves, over :mod:`common.serving`."""
