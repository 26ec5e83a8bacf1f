"""Send a request through the admission webhooks, in the real server's order and with its messages.

Mutating webhooks run one after the other; each gets the object as the previous one changed it.
Validating webhooks all get the final object. ``matchConditions``, policies and
``reinvocationPolicy`` are not modelled: ``tests/e2e`` tests them on a real API server.
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
    read_response,
    review,
    review_request,
)
from simulator.api.selectors import InvalidSelector
from simulator.api.webhooks import Webhook, parse_webhooks


def _unchanged(obj: Json) -> Json:
    return obj


class AdmissionChain:
    """Calls the webhooks that a request must pass.

    Args:
        caller: calls one webhook.
        new_uid: returns a UID for a review.
        stored: returns the stored objects of a resource.
        namespace_labels: returns the labels of a namespace.
    """

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
        normalize: Callable[[Json], Json] = _unchanged,
    ) -> Json | None:
        """Return *obj* as the mutating webhooks change it.

        Args:
            request: the request.
            obj: the object in it, ``None`` in a deletion.
            warnings: the webhooks' warnings for the user are appended here.
            normalize: decodes a patched object and fills in the defaults.

        Returns:
            The changed object.

        Raises:
            StatusError: a webhook denied it, or failed and its policy is ``Fail``.
        """
        for webhook in self._webhooks(request, mutating=True):
            body = self._review_for(webhook, request, obj)
            if body is None:
                continue
            response = await self._call(webhook, body)
            if response is not None:
                warnings.extend(response.warnings)
                if response.patch is not None and obj is not None:
                    try:
                        obj = normalize(apply_json_patch(obj, response.patch))
                    except InvalidPatch as error:
                        raise internal(str(error)) from error
        return obj

    async def validate(self, request: ReviewRequest, obj: Json | None, warnings: list[str]) -> None:
        """Call all validating webhooks at the same time; raise the first denial, in their order.

        Raises:
            StatusError: a webhook denied it, or failed and its policy is ``Fail``.
        """
        calls = [
            (webhook, body)
            for webhook in self._webhooks(request, mutating=False)
            if (body := self._review_for(webhook, request, obj)) is not None
        ]
        responses = await asyncio.gather(
            *(self._call(webhook, body) for webhook, body in calls),
            return_exceptions=True,
        )
        for response in responses:
            if isinstance(response, BaseException):
                raise response
            if response is not None:
                warnings.extend(response.warnings)

    def _webhooks(self, request: ReviewRequest, *, mutating: bool) -> Sequence[Webhook]:
        # Otherwise a broken webhook could block the repair of its own configuration.
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
        """Build the review for a webhook; ``None`` if the webhook does not match the request."""
        namespace = request.target.namespace
        if not webhook.matches(
            request.target,
            request.operation,
            objects=(obj, request.old),
            namespace_labels=self._namespace_labels(namespace) if namespace else None,
        ):
            return None
        return review_request(request, obj, uid=self._new_uid())

    async def _call(self, webhook: Webhook, body: Json) -> WebhookResponse | None:
        """Return a webhook's response; ``None`` if it failed and its failure is ignored."""
        try:
            response = read_response(
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
        if not response.allowed:
            raise denial(webhook.name, response.status)
        return response


def _fail_unless_open(webhook: Webhook, reason: str, error: Exception) -> None:
    if not webhook.fails_open:
        raise internal(f'failed calling webhook "{webhook.name}": {reason}') from error
