"""Inject random faults into a node, each with its weight."""

from collections.abc import Callable, Sequence
from random import Random

from tests.adversary.judge import Call
from tests.adversary.moves import Faults
from tests.adversary.world import KubeletKilled

Choices = Sequence[tuple[int, Callable[[], None]]]

_EAGER = 0.25
"""Probability of a fault at each point where faults may happen."""

_LOST = 0.01
"""Probability that a response is lost."""


class Chaos:
    """Causes random faults at every point where faults may happen, unless it is paused."""

    def __init__(self, faults: Faults, random: Random) -> None:
        self._faults = faults
        self._random = random
        self._striking = False
        self.paused = False
        # The usual events of a node, then the rare faults.
        self._mild: Choices = (
            (12, faults.deliver),
            (12, faults.start_one),
            (4, faults.end_one),
            (4, faults.write_statuses),
            (3, faults.write_patches),
            (3, faults.look),
            (2, faults.restart_container),
            (2, faults.delete_by_force),
            (2, faults.delete),
            (2, faults.clean_up),
            (2, faults.reuse_name),
            (2, faults.fail_a_get),
            (1, faults.refresh),
            (3, faults.send_devices),
        )
        self._rare: Choices = (
            (6, faults.kill_agent),
            (3, faults.api),
            (4, faults.list),
            (1, faults.health),
            (1, faults.static_pod),
            (1, faults.break_watch),
        )

    def strike(self, where: str, call: Call | None) -> None:
        """Cause some faults, or none.

        *where*: ``between`` pods, before a ``call``, in ``flight`` (the kubelet has chosen device
        IDs and calls the agent), or while the agent calls ``List`` (``list``).
        """
        if self._striking or self.paused:
            return
        self._striking = True
        try:
            self._strike(where, call)
        finally:
            self._striking = False

    def _strike(self, where: str, call: Call | None) -> None:
        random = self._random
        if where == "flight":
            init = call is not None and call.container.hands_on
            if random.random() < (0.4 if init else 0.1):
                self._faults.forget(call)
            return
        while random.random() < _EAGER:
            self._run_one(self._mild)
        if where == "list":
            return
        self._faults.may_see_again()
        if random.random() < 0.03:
            self._run_one(self._rare)
        if where == "call" and random.random() < 0.006:
            self._faults.note("kubelet killed in mid-admission")
            raise KubeletKilled
        if where == "call" and random.random() < 0.006:
            self._faults.kill_agent()  # the device plugin proxy calls the next one

    def loses(self) -> bool:
        """Return whether this response is lost: the agent is killed before the proxy has it."""
        if self._striking or self.paused or self._random.random() > _LOST:
            return False
        self._faults.lose_response()
        return True

    def _run_one(self, choices: Choices) -> None:
        [fault] = self._random.choices(
            [each for _, each in choices], [weight for weight, _ in choices]
        )
        fault()
