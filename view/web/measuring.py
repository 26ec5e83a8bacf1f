"""What agents measure, read now and then."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.cluster.agents import AGENT_NAMESPACE, read_uses
from view.cluster.collections import Api
from view.model.usage import NodeUse

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 15.0
_IDLE_SECONDS = 300.0
"""Where nobody measures, or nobody may be asked."""

_SHARE = 10
"""A reading of two seconds is followed by the next after twenty: a tenth of a core."""


class Measuring:
    """Asks agents what they measure. :meth:`run` belongs to one thread."""

    def __init__(
        self,
        api: Api,
        namespace: str = AGENT_NAMESPACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is asked before :meth:`run`."""
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._uses: Mapping[str, NodeUse] = {}
        self._reason = ""
        self.at = 0.0
        """When what is known was measured, unix time."""

    @property
    def uses(self) -> Mapping[str, NodeUse]:
        """What was measured last, by node; nodes whose agents do not measure are left out."""
        return self._uses

    def run(self, stop: threading.Event) -> None:
        """Ask again and again, until *stop*."""
        while not stop.is_set():
            began = self._clock()
            self._measure()
            pause = _PERIOD_SECONDS if self._uses else _IDLE_SECONDS
            stop.wait(max(pause, _SHARE * (self._clock() - began)))

    def _measure(self) -> None:
        try:
            found = read_uses(self._api, self._namespace)
        except (Rejected, Gone, Unavailable) as error:
            self._tell(str(error))
            if not isinstance(error, Unavailable):  # else it is as old as all that is shown
                self._uses = {}
            return
        measured = {each.node: each for each in found if each.measured}
        problems = [each.problem for each in found if each.problem]
        if measured or not problems:
            self._reason = ""
        else:
            self._tell(problems[0])
        self._uses, self.at = measured, time.time()

    def _tell(self, reason: str) -> None:
        """Log why nothing is known, once."""
        if reason != self._reason:
            log.info("use is not shown", extra={"reason": reason})
            self._reason = reason
