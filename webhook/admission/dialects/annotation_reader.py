"""Annotations of another system on one pod: what they become, and what is not kept."""

from collections.abc import Collection, Mapping
from typing import Any

from contract.errors import FieldError, quote
from contract.other_systems import WISHES
from webhook.admission.decision import short


class AnnotationReader:
    """Reads annotations of one pod one by one, and collects what a :class:`Reading` has of them.

    Attributes:
        wishes: last part of our wish's name to its value.
        read: names of the annotations that were read and that the pod has.
        errors: what cannot be kept.
        warnings: what is not kept, one line each.
    """

    def __init__(self, annotations: Mapping[str, Any], path: str) -> None:
        """Read nothing yet; *path* is the prefix of ``metadata`` in paths."""
        self._annotations = annotations
        self._path = path
        self.wishes: dict[str, str] = {}
        self.read: list[str] = []
        self.errors: list[FieldError] = []
        self.warnings: list[str] = []

    def get(self, key: str) -> str:
        """Return an annotation's text; empty if the pod does not have it."""
        if key not in self._annotations:
            return ""
        value = self._annotations[key]
        if key not in self.read:
            self.read.append(key)
            if not isinstance(value, str):
                self.refuse(key, "must be text", "wish-not-text")
        return value.strip() if isinstance(value, str) else ""

    def add_wish(self, key: str, value: str) -> None:
        """Add the wish that replaces an annotation, unless *value* is empty: that is no wish."""
        if value:
            self.wishes[WISHES[key]] = value

    def add_policy(self, key: str, allowed: Collection[str], kept: Collection[str] = ()) -> None:
        """Add the policy that a comma-separated annotation names first.

        *allowed* are the policies that we have as well. The words in *kept* hold without a wish;
        others are warned of.
        """
        words = list(filter(None, (each.strip() for each in self.get(key).split(","))))
        ours = [each for each in words if each in allowed]
        self.add_wish(key, ours[0] if ours else "")
        lost = [each for each in words if each not in (*ours[:1], *kept)]
        if lost:
            self.warnings.append(f"{key}: {short(', '.join(lost))} is not kept")

    def refuse(self, key: str, detail: str, rule: str) -> None:
        """Add the error of an annotation."""
        where = f"{self._path}metadata.annotations[{key}]"
        value = quote(self._annotations[key])
        self.errors.append(FieldError(where, detail, rule, value))
