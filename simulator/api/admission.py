"""Taking a request through webhooks, in the order and words of the real server.

Mutating webhooks run one after the other, each on what the one before made of the object.
Validating webhooks all see the final object. ``matchConditions``, policies and
``reinvocationPolicy`` are not modelled: ``tests/e2e`` asks a real API server about them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from simulator.api.caller import WebhookCaller, WebhookCallFailed
from simulator.api.errors import internal
from simulator.api.patching import InvalidPatch, apply_json_patch
from simulator.api.resources import (
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    ApiResource,
    Json,
)
from simulator.api.review import (
    InvalidResponse,
    ReviewRequest,
    WebhookResponse,
    denial,
    read_answer,
    review,
    review_request,
)
from simulator.api.selectors import InvalidSelector
from simulator.api.webhooks import Webhook, parse_webhooks


def _as_it_is(obj: Json) -> Json:
    return obj


class AdmissionChain:
    """The chain of webhooks."""

    def __init__(
        self,
        *,
        caller: WebhookCaller,
        new_uid: Callable[[], str],
        stored: Callable[[ApiResource], Iterable[Json]],
        namespace_labels: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._caller = caller
        self._new_uid = new_uid
        self._stored = stored
        self._namespace_labels = namespace_labels

    async def mutate(
        self,
        request: ReviewRequest,
        obj: Json | None,
        warnings: list[str],
        *,
        settle: Callable[[Json], Json] = _as_it_is,
    ) -> Json | None:
        """Let the mutating webhooks change *obj*.

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
        for webhook in self._webhooks(request, mutating=True):
            body = self._review_for(webhook, request, obj)
            if body is None:
                continue
            answer = await self._ask(webhook, body)
            if answer is not None:
                warnings.extend(answer.warnings)
                if answer.patch is not None and obj is not None:
                    try:
                        obj = settle(apply_json_patch(obj, answer.patch))
                    except InvalidPatch as error:
                        raise internal(str(error)) from error
        return obj

    async def validate(self, request: ReviewRequest, obj: Json | None, warnings: list[str]) -> None:
        """Ask the validating webhooks, all at once; the first refusal is told.

        Raises:
            StatusError: one denied it, or failed and its policy is ``Fail``.
        """
        asked = [
            (webhook, body)
            for webhook in self._webhooks(request, mutating=False)
            if (body := self._review_for(webhook, request, obj)) is not None
        ]
        answers = await asyncio.gather(
            *(self._ask(webhook, body) for webhook, body in asked),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                warnings.extend(answer.warnings)

    def _webhooks(self, request: ReviewRequest, *, mutating: bool) -> Sequence[Webhook]:
        # A broken webhook could otherwise keep anybody from repairing its configuration.
        if request.target.resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            return ()
        stored = self._stored(MUTATING_WEBHOOKS if mutating else VALIDATING_WEBHOOKS)
        try:
            return parse_webhooks(stored, mutating=mutating)
        except (KeyError, InvalidSelector) as error:
            raise internal(f"webhook configuration: {error}") from error

    def _review_for(
        self, webhook: Webhook, request: ReviewRequest, obj: Json | None
    ) -> Json | None:
        """Build what a webhook is asked; ``None`` when it has no say."""
        namespace = request.target.namespace
        if not webhook.wants(
            request.target,
            request.operation,
            objects=(obj, request.old),
            namespace_labels=self._namespace_labels(namespace) if namespace else None,
        ):
            return None
        return review_request(request, obj, uid=self._new_uid())

    async def _ask(self, webhook: Webhook, body: Json) -> WebhookResponse | None:
        """Return the answer of a webhook; ``None`` when it failed and may be ignored."""
        try:
            answer = read_answer(
                await self._caller.post(webhook, review(body)),
                uid=body["uid"],
                mutating=webhook.mutating,
            )
        except WebhookCallFailed as error:
            _fail_unless_open(webhook, f"failed to call webhook: {error}", error)
            return None
        except InvalidResponse as error:
            _fail_unless_open(webhook, f"received invalid webhook response: {error}", error)
            return None
        if not answer.allowed:
            raise denial(webhook.name, answer.status)
        return answer


def _fail_unless_open(webhook: Webhook, why: str, error: Exception) -> None:
    if not webhook.fails_open:
        raise internal(f'failed calling webhook "{webhook.name}": {why}') from error
