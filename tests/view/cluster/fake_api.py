"""A client of the API server with responses from a table."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from common.apiserver.client import Client, Json
from common.apiserver.errors import Gone, Rejected

Responses = Mapping[str, Any]
"""By path: objects of a list, one object, text, or an error that is raised."""


class FakeApi(Client):
    """What is not in its table is forbidden, unless it has something for all *others*."""

    def __init__(self, responses: Responses, *, page: int = 500, others: object = None) -> None:
        self.responses = dict(responses)
        self.watched: dict[str, Mapping[str, str]] = {}
        self.written: list[str] = []
        self.expiring = False
        self._page = page
        self._others = others

    def _find(self, path: str) -> Any:
        found = self.responses.get(path, self._others)
        if found is None:
            raise Rejected(403, f"{path} is forbidden")
        if isinstance(found, Exception):
            raise found
        return found

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        found = self._find(path)
        at = int(query.get("continue", 0))
        if at and self.expiring:
            self.expiring = False
            raise Gone("expired")
        after = at + self._page
        return found[at:after], "7", str(after) if after < len(found) else ""

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
        self.watched[path] = query
        if isinstance(found := self.responses.get(path), Exception):
            raise found
        return iter(())

    def call(self, method: str, path: str, body: Json | None = None, **more: Any) -> Json:
        if method != "GET":
            self.written.append(f"{method} {path}?{urlencode(more.get('query') or {})}")
        found: Json = self._find(path if method == "GET" else f"{method} {path}")
        return found

    def read_text(self, path: str, **more: object) -> str:
        return str(self._find(path))
