"""The error of requests that cannot be used; the message is one line for the sender."""

from http import HTTPStatus


class BadRequest(Exception):
    """The request breaks a rule; *status* is the HTTP status of the response."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status
