"""Errors of the simulator that end a command with one line."""


class ProcessDied(Exception):
    """A process did not come up, or has died; the message ends with its log."""
