"""The instances of one plugin or driver: which of them serves. Pure; no I/O.

The newest registration serves. Older instances, and instances that leave a call unanswered, are
silent: one of them serves again only after it has responded, as it may hang, and if no other one
serves. If none serves until patience is over, the instances are given up.
"""

from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741 -- an instance


class Roster(Generic[I]):
    """The instances that are connected, by the order of their registrations.

    Attributes:
        last: the instance that serves, or served last; ``None`` before the first.
        given_up: whether no instance serves, and patience is over.
    """

    def __init__(self) -> None:
        self._numbers: dict[I, int] = {}
        self._silent: set[I] = set()
        self.last: I | None = None
        self.given_up = False

    def __contains__(self, instance: I) -> bool:
        """Return whether an instance is connected."""
        return instance in self._numbers

    @property
    def instances(self) -> tuple[I, ...]:
        """The instances that are connected, oldest registration first."""
        return tuple(sorted(self._numbers, key=self._numbers.__getitem__))

    @property
    def silent(self) -> tuple[I, ...]:
        """The silent instances, which must respond before they serve again, newest first."""
        return tuple(each for each in reversed(self.instances) if each in self._silent)

    @property
    def serving(self) -> I | None:
        """The newest instance that is not silent, which gets the calls; ``None`` without one."""
        return next((each for each in reversed(self.instances) if each not in self._silent), None)

    def join(self, instance: I, number: int) -> None:
        """Add an instance.

        A higher *number* of its registration is newer.
        """
        if all(each < number for each in self._numbers.values()):
            self._silent.update(self._numbers)
        else:
            self._silent.add(instance)
        self._numbers[instance] = number
        self._update()

    def leave(self, instance: I) -> None:
        """Remove an instance that has ended."""
        self._numbers.pop(instance, None)
        self._silent.discard(instance)
        self._update()

    def mark_silent(self, instance: I) -> bool:
        """Stop using an instance that left a call unanswered; return whether it was in use."""
        if instance not in self or instance in self._silent:
            return False
        self._silent.add(instance)
        self._update()
        return True

    def mark_responding(self, instance: I) -> None:
        """Use an instance again that has responded; older ones become silent."""
        if instance in self:
            number = self._numbers[instance]
            self._silent.discard(instance)
            self._silent.update(each for each, other in self._numbers.items() if other < number)
            self._update()

    def give_up(self) -> bool:
        """Give up the instances unless one serves; return whether that is new."""
        if self.serving is not None or self.last is None or self.given_up:
            return False
        self.given_up = True
        return True

    def _update(self) -> None:
        if (serving := self.serving) is not None:
            self.last, self.given_up = serving, False
