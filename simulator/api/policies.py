"""ValidatingAdmissionPolicies and their bindings: what they say of a request. Pure.

As ``apiserver/pkg/admission/plugin/policy/validating`` has it: a policy does something only through
a binding; of several refusals the user is told the first. Parameters (``paramKind``) and audit
annotations are not modelled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulator.api.cel import EvaluationError, InvalidExpression, Scope, holds, scope_of, text_of
from simulator.api.resources import Json, Target
from simulator.api.selectors import Requirement, labels_match, labels_of, parse_label_selector
from simulator.api.webhooks import Operation, Rule, parse_rule

_LONGEST_MESSAGE = 5 * 1024
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}


@dataclass(frozen=True, slots=True)
class Denial:
    """One validation that failed.

    Attributes:
        policy: its name.
        binding: the name of the binding by which it counts.
        actions: what the binding wants done: ``Deny``, ``Warn``, ``Audit``.
        message: what is wrong.
        reason: such as ``Invalid``.
    """

    policy: str
    binding: str
    actions: tuple[str, ...]
    message: str
    reason: str = "Invalid"

    @property
    def denial(self) -> str:
        """What the user is told."""
        return (
            f"ValidatingAdmissionPolicy '{self.policy}' with binding '{self.binding}' "
            f"denied request: {self.message}"
        )

    @property
    def warning(self) -> str:
        """What the user is warned of."""
        return (
            f"Validation failed for ValidatingAdmissionPolicy '{self.policy}' with binding "
            f"'{self.binding}': {self.message}"
        )

    @property
    def code(self) -> int:
        """The HTTP status of a denial."""
        return _CODES.get(self.reason, 422)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as policies see it.

    Attributes:
        target: what it names.
        operation: what it does.
        namespace_labels: of the object's namespace, ``None`` for cluster-wide objects.
        review: the ``request`` of an AdmissionReview: object, oldObject and the rest.
    """

    target: Target
    operation: Operation
    namespace_labels: Mapping[str, str] | None
    review: Json


def refusals(policies: Iterable[Json], bindings: Iterable[Json], asked: Asked) -> list[Denial]:
    """Return everything that stored policies have against a request, in the order of their names.

    Raises:
        InvalidSelector: a selector has an unknown operator.
        KeyError: a required field is missing.
    """
    found: list[Denial] = []
    bound = sorted(bindings, key=_name)
    for policy in sorted(policies, key=_name):
        spec = policy["spec"]
        if not _matches(spec["matchConstraints"], asked):
            continue
        for binding in bound:
            wanted = binding["spec"]
            if wanted["policyName"] != _name(policy):
                continue
            resources = wanted.get("matchResources")
            if resources is not None and not _matches(resources, asked):
                continue
            actions = tuple(wanted["validationActions"])
            found += (
                Denial(_name(policy), _name(binding), actions, message, reason)
                for message, reason in _validate(spec, asked)
            )
    return found


def _validate(spec: Json, asked: Asked) -> list[tuple[str, str]]:
    """Return message and reason of every validation that fails."""
    variables = {each["name"]: each["expression"] for each in spec.get("variables") or ()}
    review = asked.review
    objects = {"object": review["object"], "oldObject": review["oldObject"], "request": review}
    fails_open = spec.get("failurePolicy") == "Ignore"
    try:
        if not _conditions_hold(spec.get("matchConditions") or (), scope_of(objects)):
            return []
    except (EvaluationError, InvalidExpression) as error:
        return [] if fails_open else [(str(error), "Invalid")]
    scope = scope_of(objects, variables)
    found: list[tuple[str, str]] = []
    for each in spec["validations"]:
        try:
            if holds(each["expression"], scope):
                continue
        except (EvaluationError, InvalidExpression) as error:
            if not fails_open:
                found.append((str(error), "Invalid"))
            continue
        found.append((_message(each, scope), each.get("reason") or "Invalid"))
    return found


def _conditions_hold(conditions: Iterable[Json], scope: Scope) -> bool:
    """Ask the matchConditions: one that says no outweighs others that fail."""
    failed: Exception | None = None
    for each in conditions:
        try:
            if not holds(each["expression"], scope):
                return False
        except (EvaluationError, InvalidExpression) as error:
            failed = error
    if failed is not None:
        raise failed
    return True


def _message(validation: Json, scope: Scope) -> str:
    expression = validation.get("messageExpression")
    made = text_of(expression, scope).strip() if expression else ""
    if "\n" in made or len(made.encode()) > _LONGEST_MESSAGE:
        made = ""
    written = (validation.get("message") or "").strip()
    return made or written or f"failed expression: {validation['expression'].strip()}"


def _matches(wanted: Json, asked: Asked) -> bool:
    """Decide by rules and selectors; a binding that names no rules wants what its policy wants."""
    rules = wanted.get("resourceRules")
    if rules and not _any(rules, asked):
        return False
    if _any(wanted.get("excludeResourceRules") or (), asked):
        return False
    by_namespace = parse_label_selector(wanted.get("namespaceSelector"))
    if asked.namespace_labels is not None and not labels_match(
        by_namespace, asked.namespace_labels
    ):
        return False
    return _has_labels(parse_label_selector(wanted.get("objectSelector")), asked.review)


def _has_labels(wanted: tuple[Requirement, ...], review: Json) -> bool:
    objects = (review["object"], review["oldObject"])
    return any(labels_match(wanted, labels_of(each)) for each in objects if each is not None)


def _any(rules: Iterable[Json], asked: Asked) -> bool:
    return any(_wants(parse_rule(each), each.get("resourceNames") or (), asked) for each in rules)


def _wants(rule: Rule, names: Iterable[str], asked: Asked) -> bool:
    return rule.matches(asked.target, asked.operation) and (not names or asked.target.name in names)


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])
