"""Builds links from pods to a dashboard, such as Grafana's. Pure."""

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlsplit

from common.text import cut
from view.model.reports import PodReport

FIELDS = ("namespace", "pod", "node", "owner")

_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A URL with fields in braces."""

    template: Annotated[str, "the URL; empty for none."] = ""

    def __post_init__(self) -> None:
        """Check the template.

        Raises:
            ValueError: it is not an http or https URL, or has an unknown field.
        """
        if not self.template:
            return
        parts = urlsplit(self.template)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"{cut(self.template, 80)!r} must begin with http:// or https:// and a host"
            )
        if _FIELD.search(parts.netloc):
            raise ValueError("fields are not allowed in the host")
        unknown = sorted(set(_FIELD.findall(self.template)) - {*FIELDS})
        if unknown:
            known = ", ".join(f"{{{each}}}" for each in FIELDS)
            raise ValueError(f"unknown field {{{cut(unknown[0], 80)}}}: known fields: {known}")

    def url_of(self, pod: PodReport) -> str:
        """Return the URL of a pod; empty for none."""
        values = {
            "namespace": pod.namespace,
            "pod": pod.name,
            "node": pod.node,
            "owner": pod.owner.partition("/")[2],
        }
        return _FIELD.sub(lambda found: quote(values[found[1]], safe=""), self.template)
