"""What one life of the kubelet has shown of its pods so far (R2). Pure.

Pods go by the kubelet's UIDs. Another kubelet has shown nothing yet: it gets a history of its own.
"""

from dataclasses import dataclass, field

from agent.allocator.record import Record


@dataclass(slots=True)
class KubeletHistory:
    """Which pods were listed, and whose places were offered again.

    Attributes:
        listed: pods that ``List`` has shown.
        met: of these, those that surely were the pod of their name that was shown.
        freed: pods that are over, and whose places the kubelet has offered since.
    """

    listed: set[str] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    freed: set[str] = field(default_factory=set)

    def add(self, record: Record, *, offered: bool) -> None:
        """Add what a look has shown; *offered* tells whether the kubelet offered something."""
        settled = record.settled.by_uid.keys()
        self.listed |= settled
        self.met |= settled | {each.uid for each in record.listed_unsettled if each.sure}
        self.freed -= settled
        for each in record.unsettled:
            if each.listed is not None and each.uid:
                self.listed.add(each.uid)
                if not each.over:
                    self.freed.discard(each.uid)
                elif offered and each.view is None:
                    self.freed.add(each.uid)
            elif each.over and offered:
                self.freed.add(each.uid)
