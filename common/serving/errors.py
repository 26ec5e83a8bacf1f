"""The one error of this package."""


class SettingsError(Exception):
    """The server cannot start with these settings; the text is one line for the operator."""
