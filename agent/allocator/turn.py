"""What one call leaves for the next: by it newcomers are told from pods listed before (R3). Pure.

``List`` has no UIDs. What it showed is compared by shape, and by how often each shape is there.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from agent.allocator.record import Record
from agent.allocator.recorded_pod import RecordedPod, Shape
from placement.pods import PodId


@dataclass(frozen=True, slots=True)
class Turn:
    """The pod of the last call, and what ``List`` showed then.

    Attributes:
        asker: the pod of the last call, by the kubelet's UID; ``None`` before the first call to
            this kubelet.
        listed: how often ``List`` showed each shape then; ``None`` where that is not known.
        guessed: whether *asker* was a guess. It was right once ``List`` shows what the pod got.
        passed: pods that lacked something while another was asking, or when a call was refused:
            their admission has ended.
        before: what the last call for another pod had left; valid again if *asker* was wrong.
        tried: pods that were guessed since *before*, wrongly.
    """

    asker: PodId | None = None
    listed: Mapping[Shape, int] | None = None
    guessed: bool = True
    passed: frozenset[PodId] = frozenset()
    before: "Turn | None" = None
    tried: frozenset[PodId] = frozenset()

    def after(self, record: Record, asker: PodId, *, guessed: bool) -> "Turn":
        """Return what a call of *asker* leaves for the next."""
        found = record.pod(asker)
        me = found.kubelet_id if found is not None else asker
        if not record.listing:  # a pod that is guessed without List may not be listed yet
            return replace(self, asker=me, guessed=True, before=None)
        others = [each for each in record.listed_unsettled if each.id != asker]
        return Turn(
            me,
            record.shapes,
            guessed,
            frozenset(
                each.kubelet_id for each in others if each.lacks or each.kubelet_id in self.passed
            ),
            self.before if me == self.asker else replace(self, before=None),
            self.tried if me == self.asker else frozenset(),
        )

    def refused(self, record: Record) -> "Turn":
        """Return what a refusal leaves: every listed pod that lacks something is rejected."""
        if not record.listing:
            return self
        rejected = (
            each.kubelet_id
            for each in record.listed_unsettled
            if each.lacks or each.kubelet_id in self.passed
        )
        return replace(self, listed=record.shapes, guessed=True, passed=frozenset(rejected))

    def disproved(self) -> "Turn":
        """Return the turn to go on from when the guess at the last call was wrong."""
        if not self.guessed or self.asker is None:
            return self
        if self.before is None:  # it was guessed without List, and may come yet
            return replace(self, asker=None)
        return replace(self.before, tried=self.before.tried | {self.asker})

    def without_departed(self, record: Record, seen: AbstractSet[str]) -> "Turn":
        """Forget what has left ``List``: a name that comes back is another pod's.

        Args:
            record: who holds what, by a look without a call too.
            seen: the kubelet's UIDs of the pods that this kubelet has listed.
        """
        if not record.listing:
            return self
        asker, listed, now = self.asker, self.listed, record.shapes
        if asker is not None and asker.uid in seen and not record.lists(asker.key):
            asker = None
        if listed is not None and not listed.items() <= now.items():
            listed = {shape: min(n, now.get(shape, 0)) for shape, n in listed.items()}
        return replace(self, asker=asker, listed=listed)

    def is_asker(self, pod: RecordedPod) -> bool:
        """Return whether *pod* made the last call; its UID may not have been known then."""
        asker = self.asker
        return asker is not None and asker.key == pod.id.key and asker.uid in {"", pod.uid}

    def is_new(self, pod: RecordedPod, record: Record) -> bool:
        """Return whether a pod is listed only since the last call: its shape is there more now.

        Where nothing is known of the last call, every pod is new.
        """
        if self.listed is None or pod.shape not in self.listed:
            return True
        grown = record.shapes.get(pod.shape, 0) - self.listed[pod.shape]
        if pod.shows or grown <= 0:
            return False
        # Of several that show nothing it is the newest: the others were there before.
        alike = (each for each in record.listed_unsettled if each.shape == pod.shape)
        known = [each for each in alike if not each.shows and each.view is not None]
        known.sort(key=lambda each: (each.sure, each.rank), reverse=True)
        return pod.view is None or pod in known[:grown]
