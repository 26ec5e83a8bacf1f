"""Errors of the simulator that end a command with one line."""


class ProcessDied(Exception):
    """A process did not become ready, or died; then the message ends with its log."""
