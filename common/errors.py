"""The errors that all programs share."""


class SettingsError(Exception):
    """A setting cannot be used. The message is one line with field, rule and value."""


class Unavailable(Exception):
    """PodResources, the API server or NVML does not respond."""
