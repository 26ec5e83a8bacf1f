"""Webhook configurations, and which webhooks match a request. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from simulator.api.resources import Json, RequestTarget
from simulator.api.selectors import Requirement, labels_match, labels_of, parse_label_selector

Operation: TypeAlias = Literal["CREATE", "UPDATE", "DELETE"]

_DEFAULT_TIMEOUT_S = 10


def rule_matches(rule: Json, target: RequestTarget, operation: Operation) -> bool:
    """Return whether a rule of a webhook or policy matches a request.

    ``*`` stands for all. Examples of resources: ``pods``, ``pods/binding``, ``pods/*``, ``*/*``.
    """
    resource = target.resource
    return (
        _has(rule.get("operations"), operation)
        and _has(rule.get("apiGroups"), resource.group)
        and _has(rule.get("apiVersions"), resource.version)
        and rule.get("scope", "*") in ("*", "Namespaced" if resource.namespaced else "Cluster")
        and any(
            _names(each, resource.plural, target.subresource) for each in rule.get("resources", ())
        )
    )


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration.

    Attributes:
        name: its name in error messages.
        mutating: whether its configuration is a mutating one.
        url: its URL; for a service, a host name that does not resolve here.
        ca_bundle: base64 PEM that verifies the server certificate; empty for the system's CAs.
        timeout_s: timeout of a call, in seconds.
        fails_open: whether its failurePolicy is ``Ignore``.
        rules: the rules as configured; one of them must match.
        namespace_selector: conditions on the labels of the object's namespace.
        object_selector: conditions on the labels of the object, old or new.
    """

    name: str
    mutating: bool
    url: str
    ca_bundle: str
    timeout_s: int
    fails_open: bool
    rules: Sequence[Json]
    namespace_selector: tuple[Requirement, ...]
    object_selector: tuple[Requirement, ...]

    def matches(
        self,
        target: RequestTarget,
        operation: Operation,
        *,
        objects: Sequence[Json | None],
        namespace_labels: Mapping[str, str] | None,
    ) -> bool:
        """Return whether rules and selectors match a request.

        Args:
            target: the object of the request.
            operation: what the request does.
            objects: the new and the old object, each ``None`` if there is none.
            namespace_labels: labels of the object's namespace, ``None`` for cluster-wide objects.
        """
        if not any(rule_matches(rule, target, operation) for rule in self.rules):
            return False
        if namespace_labels is not None and not labels_match(
            self.namespace_selector, namespace_labels
        ):
            return False
        return any(
            labels_match(self.object_selector, labels_of(each))
            for each in objects
            if each is not None
        )


def parse_webhooks(configurations: Iterable[Json], *, mutating: bool) -> list[Webhook]:
    """Parse stored configurations; the webhooks are in the order of their calls.

    Raises:
        InvalidSelector: a selector has an unknown operator.
        KeyError: a required field is missing.
    """
    ordered = sorted(configurations, key=lambda each: str(each["metadata"]["name"]))
    return [
        _parse(webhook, mutating=mutating)
        for configuration in ordered
        for webhook in configuration.get("webhooks") or ()
    ]


def _parse(webhook: Json, *, mutating: bool) -> Webhook:
    client = webhook["clientConfig"]
    return Webhook(
        name=webhook["name"],
        mutating=mutating,
        url=_url(client),
        ca_bundle=client.get("caBundle") or "",
        timeout_s=webhook.get("timeoutSeconds") or _DEFAULT_TIMEOUT_S,
        fails_open=webhook.get("failurePolicy") == "Ignore",
        rules=webhook.get("rules") or (),
        namespace_selector=parse_label_selector(webhook.get("namespaceSelector")),
        object_selector=parse_label_selector(webhook.get("objectSelector")),
    )


def _url(client: Json) -> str:
    if client.get("url"):
        return str(client["url"])
    service = client["service"]
    return f"https://{service['name']}.{service['namespace']}.svc{service.get('path') or '/'}"


def _has(wanted: Sequence[str] | None, found: str) -> bool:
    return wanted is not None and ("*" in wanted or found in wanted)


def _names(pattern: str, plural: str, subresource: str) -> bool:
    resource, _, wanted = pattern.partition("/")
    return resource in ("*", plural) and wanted in (subresource, "*")
