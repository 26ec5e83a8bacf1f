"""The one error that programs and what they share must agree on."""


class Unavailable(Exception):
    """Something outside does not answer: PodResources, the API server or NVML."""
