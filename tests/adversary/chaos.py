"""When something happens to a node, and how often what."""

from collections.abc import Callable, Sequence
from random import Random

from tests.adversary.judge import Call
from tests.adversary.moves import Faults
from tests.adversary.world import KubeletDied

Choices = Sequence[tuple[int, Callable[[], None]]]

_EAGER = 0.25
"""How likely something happens at a point where it may."""


_LOST = 0.01
"""How likely an answer is lost."""


class Chaos:
    """Lets faults happen at every point where something may.

    Attributes:
        paused: nothing happens.
    """

    def __init__(self, faults: Faults, random: Random) -> None:
        self._faults = faults
        self._random = random
        self._deep = False
        self.paused = False
        # What a node sees all the time, and what is rare.
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
            (2, faults.come_back),
            (2, faults.fail_a_get),
            (1, faults.refresh),
            (3, faults.tell_devices),
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
        """Let something happen, or nothing.

        Args:
            where: ``between`` pods, before a ``call``, in ``flight`` (the kubelet has chosen
                places and asks), or while the agent asks for the ``list``.
            call: which call it is.

        Raises:
            KubeletDied: the kubelet is.
        """
        if self._deep or self.paused:
            return
        self._deep = True
        try:
            self._strike(where, call)
        finally:
            self._deep = False

    def _strike(self, where: str, call: Call | None) -> None:
        random = self._random
        if where == "flight":
            init = call is not None and call.container.hands_on
            if random.random() < (0.4 if init else 0.1):
                self._faults.forget(call)
            return
        while random.random() < _EAGER:
            self._one_of(self._mild)
        if where == "list":
            return
        self._faults.may_see_again()
        if random.random() < 0.03:
            self._one_of(self._rare)
        if where == "call" and random.random() < 0.006:
            self._faults.note("kubelet died in the middle of a pod")
            raise KubeletDied
        if where == "call" and random.random() < 0.006:
            self._faults.kill_agent()  # the device plugin proxy asks the next one

    def loses(self) -> bool:
        """Let the agent die after it has answered and before the proxy has the answer, or not."""
        if self._deep or self.paused or self._random.random() > _LOST:
            return False
        self._faults.lose_answer()
        return True

    def _one_of(self, choices: Choices) -> None:
        [what] = self._random.choices(
            [each for _, each in choices], [weight for weight, _ in choices]
        )
        what()
