"""Errors, worded as by ``kubectl``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click

from common.apiserver.errors import CredentialsError, Gone, Rejected
from common.errors import Unavailable
from contract.errors import InvalidName
from view.model.manifest_fit import InvalidManifest
from view.model.words import safe

_REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class CommandError(click.ClickException):
    """The end of a command: one line on standard error, and an exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(safe(text))
        self.code = code

    def show(self, file: object = None) -> None:  # noqa: ARG002 -- click's signature
        """Print the line, without click's prefix."""
        click.echo(self.message, err=True)


def not_found(kind: str, name: str, hint: str = "") -> CommandError:
    """Return the error for an object that does not exist, with a hint where it may be."""
    text = f'Error from server (NotFound): {kind} "{name}" not found'
    return CommandError(f"{text}: {hint}" if hint else text)


@contextmanager
def as_command_errors(code: int = 1) -> Iterator[None]:
    """Translate errors of reading the cluster.

    Raises:
        CommandError: instead of each of these errors.
    """
    try:
        yield
    except (CredentialsError, InvalidManifest, InvalidName) as error:
        raise CommandError(f"error: {error}", code) from error
    except Rejected as error:
        raise CommandError(_rejected(error), code) from error
    except Gone as error:
        raise CommandError(f"Error from server (Expired): {error}", code) from error
    except Unavailable as error:
        raise CommandError(_unavailable(str(error)), code) from error


def _rejected(error: Rejected) -> str:
    if error.status == 401:
        return "error: You must be logged in to the server (Unauthorized)"
    return _from_server(error.status, str(error))


def _from_server(status: int, message: str) -> str:
    reason = _REASONS.get(status)
    return f"Error from server ({reason}): {message}" if reason else f"Error from server: {message}"


def _unavailable(text: str) -> str:
    reason = text.removeprefix("API server: ")
    found = re.fullmatch(r"(\d{3}) (.*)", reason, re.DOTALL)
    if found is not None:
        return _from_server(int(found[1]), found[2])
    refused = reason.removeprefix("connection refused by ")
    if refused != reason:
        return (
            f"The connection to the server {refused} was refused - did you specify the right host "
            "or port?"
        )
    return f"Unable to connect to the server: {reason}"
