"""Taking a request through webhooks and policies, in the order and words of the real server.

Mutating webhooks run one after the other, each on what the one before made of the object, and
those that want it once more when a later one changed it (:mod:`simulator.api.reinvocation`).
Validating policies and webhooks all see the final object.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from simulator.api.cel import EvaluationError, InvalidExpression, compile_condition
from simulator.api.errors import StatusError, bad_request, internal
from simulator.api.patching import InvalidPatch, apply_json_patch
from simulator.api.policies import Asked, refusals
from simulator.api.reinvocation import Reinvocation
from simulator.api.resources import (
    MUTATING_WEBHOOKS,
    POLICIES,
    POLICY_BINDINGS,
    VALIDATING_WEBHOOKS,
    Json,
    Resource,
)
from simulator.api.review import (
    Answer,
    InvalidAnswer,
    Request,
    denial,
    read_answer,
    review,
    review_request,
)
from simulator.api.selectors import InvalidSelector
from simulator.api.webhooks import Webhook, parse_webhooks


def _as_it_is(obj: Json) -> Json:
    return obj


class CallFailed(Exception):
    """A webhook could not be asked, or gave no answer."""


class Caller(Protocol):
    """Posts a review to a webhook."""

    async def post(self, webhook: Webhook, body: bytes) -> bytes:
        """Return the body of the answer.

        Raises:
            CallFailed: there was none, or not with status 200.
        """
        ...


class Admission:
    """The chain of webhooks and policies.

    Args:
        caller: posts reviews.
        new_uid: draws the uid of a review.
        stored: reads the stored configurations and policies.
        namespace_labels: reads the labels of a namespace.
    """

    def __init__(
        self,
        *,
        caller: Caller,
        new_uid: Callable[[], str],
        stored: Callable[[Resource], Iterable[Json]],
        namespace_labels: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._caller = caller
        self._new_uid = new_uid
        self._stored = stored
        self._namespace_labels = namespace_labels

    async def mutate(
        self,
        request: Request,
        obj: Json | None,
        warnings: list[str],
        *,
        settle: Callable[[Json], Json] = _as_it_is,
    ) -> Json | None:
        """Let the mutating webhooks change *obj*, in two rounds where one is not enough.

        Args:
            request: the request.
            obj: the object in it, ``None`` in a deletion.
            warnings: gets what the webhooks want the user to be told.
            settle: decodes what a webhook made of the object and fills in the defaults.

        Returns:
            The object as they made it.

        Raises:
            StatusError: one denied it, or failed and its policy is ``Fail``.
        """
        calls = Reinvocation()
        obj = await self._mutate_once(request, obj, warnings, calls, settle)
        if calls.begin_second():
            obj = await self._mutate_once(request, obj, warnings, calls, settle)
        return obj

    async def _mutate_once(
        self,
        request: Request,
        obj: Json | None,
        warnings: list[str],
        calls: Reinvocation,
        settle: Callable[[Json], Json],
    ) -> Json | None:
        for webhook in self._webhooks(request, mutating=True):
            body = self._review_for(webhook, request, obj)
            if body is None or calls.passes_over(webhook):
                continue
            before = obj
            answer = await self._ask(webhook, request, body)
            if answer is not None:
                warnings.extend(answer.warnings)
                if answer.patch is not None and obj is not None:
                    try:
                        obj = settle(apply_json_patch(obj, answer.patch))
                    except InvalidPatch as error:
                        raise internal(str(error)) from error
            calls.called(webhook, changed=obj != before)
        return obj

    async def validate(self, request: Request, obj: Json | None, warnings: list[str]) -> None:
        """Ask the policies, then the validating webhooks, all at once; the first refusal is told.

        Raises:
            StatusError: one denied it, or failed and its policy is ``Fail``.
        """
        self._ask_policies(request, obj, warnings)
        asked = [
            (webhook, body)
            for webhook in self._webhooks(request, mutating=False)
            if (body := self._review_for(webhook, request, obj)) is not None
        ]
        answers = await asyncio.gather(
            *(self._ask(webhook, request, body) for webhook, body in asked),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                warnings.extend(answer.warnings)

    def _ask_policies(self, request: Request, obj: Json | None, warnings: list[str]) -> None:
        # A broken policy could otherwise keep anybody from repairing it.
        if request.target.resource in (POLICIES, POLICY_BINDINGS):
            return
        target = request.target
        asked = Asked(
            target,
            request.operation,
            self._namespace_labels(target.namespace) if target.namespace else None,
            review_request(request, obj, uid=""),
        )
        try:
            found = refusals(self._stored(POLICIES), self._stored(POLICY_BINDINGS), asked)
        except (KeyError, InvalidSelector) as error:
            raise internal(f"admission policy: {error}") from error
        warnings.extend(each.warning for each in found if "Warn" in each.actions)
        denied = next((each for each in found if "Deny" in each.actions), None)
        if denied is not None:
            name = target.name or ((obj or {}).get("metadata") or {}).get("name", "")
            raise StatusError(
                denied.code,
                denied.reason,
                f'{target.resource.qualified} "{name}" is forbidden: {denied.denial}',
                {
                    "name": name,
                    "kind": target.resource.plural,
                    "causes": [{"message": denied.denial}],
                },
            )

    def _webhooks(self, request: Request, *, mutating: bool) -> Sequence[Webhook]:
        # A broken webhook could otherwise keep anybody from repairing its configuration.
        if request.target.resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            return ()
        stored = self._stored(MUTATING_WEBHOOKS if mutating else VALIDATING_WEBHOOKS)
        try:
            return parse_webhooks(stored, mutating=mutating)
        except (KeyError, InvalidSelector) as error:
            raise internal(f"webhook configuration: {error}") from error

    def _review_for(self, webhook: Webhook, request: Request, obj: Json | None) -> Json | None:
        """Build what a webhook is asked; ``None`` when it has no say."""
        namespace = request.target.namespace
        if not webhook.wants(
            request.target,
            request.operation,
            objects=(obj, request.old),
            namespace_labels=self._namespace_labels(namespace) if namespace else None,
        ):
            return None
        body = review_request(request, obj, uid=self._new_uid())
        return body if self._conditions_hold(webhook, request, obj, body) else None

    async def _ask(self, webhook: Webhook, request: Request, body: Json) -> Answer | None:
        """Return the answer of a webhook; ``None`` when it failed and may be ignored."""
        if request.dry_run and webhook.has_side_effects:
            raise bad_request(
                f'admission webhook "{webhook.name}" does not support dry run; '
                "set sideEffects to None or NoneOnDryRun"
            )
        try:
            answer = read_answer(
                await self._caller.post(webhook, review(body)),
                uid=body["uid"],
                mutating=webhook.mutating,
            )
        except CallFailed as error:
            _fail_unless_open(webhook, f"failed to call webhook: {error}", error)
            return None
        except InvalidAnswer as error:
            _fail_unless_open(webhook, f"received invalid webhook response: {error}", error)
            return None
        if not answer.allowed:
            raise denial(webhook.name, answer.status)
        return answer

    def _conditions_hold(
        self, webhook: Webhook, request: Request, obj: Json | None, body: Json
    ) -> bool:
        """Ask the matchConditions: one that says no outweighs others that fail."""
        variables = {"object": obj, "oldObject": request.old, "request": body}
        failures: list[str] = []
        for _, expression in webhook.conditions:
            try:
                if not compile_condition(expression)(variables):
                    return False
            except (EvaluationError, InvalidExpression) as error:
                failures.append(str(error))
        if not failures:
            return True
        if webhook.fails_open:
            return False
        raise StatusError(
            403,
            "Forbidden",
            f'{request.target.resource.qualified} "{request.target.name}" is forbidden: '
            f"{'; '.join(failures)}",
        )


def _fail_unless_open(webhook: Webhook, why: str, error: Exception) -> None:
    if not webhook.fails_open:
        raise internal(f'failed calling webhook "{webhook.name}": {why}') from error
