"""An answer, and the media types of answers."""

from dataclasses import dataclass
from http import HTTPStatus

JSON, TEXT = "application/json", "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer without its framing."""

    status: HTTPStatus
    media: str
    body: bytes

    @property
    def status_line(self) -> str:
        """Code and phrase."""
        return f"{self.status.value} {self.status.phrase}"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names and values."""
        return [("Content-Type", self.media), ("Content-Length", str(len(self.body)))]
