"""Which mutating webhooks are called a second time for one request (K22). Pure.

As ``apiserver/pkg/admission/plugin/webhook/mutating/reinvocationcontext.go`` has it: there are
two rounds at most. The second one comes when any webhook changed the object, and calls only
webhooks that were called before the last change; one that the first round passed over is
never called in it, whatever the object has become.
"""

from simulator.api.webhooks import Webhook


class Reinvocation:
    """The calls of one request so far."""

    def __init__(self) -> None:
        self._is_second = False
        self._changed = False
        self._since_change: set[str] = set()
        self._again: set[str] = set()

    def begin_second(self) -> bool:
        """Begin the second round; ``False`` when none is needed."""
        self._is_second = self._changed
        return self._changed

    def passes_over(self, webhook: Webhook) -> bool:
        """Return whether *webhook* is not called in this round."""
        return self._is_second and webhook.key not in self._again

    def called(self, webhook: Webhook, *, changed: bool) -> None:
        """Keep in mind that *webhook* was called, and whether it changed the object."""
        if changed:
            self._changed = True
            self._again |= self._since_change
            self._since_change = set()
        if webhook.is_reinvoked:
            self._since_change.add(webhook.key)
