"""The events and faults that can happen to a node."""

from collections.abc import Callable, Sequence
from random import Random

from contract.resource import Resource
from simulator.kubelet.pods import TERMINAL_PHASES
from tests.adversary.drawing import draw_pod
from tests.adversary.judge import Call
from tests.adversary.world import KubeletKilled, World
from tests.in_memory.pods import NAMES, Pod

FORGOTTEN = "devices forgotten (K15)"

FAULTS = (
    "GET away",
    "GET failed",
    "List unavailable",
    "agent and kubelet killed together",
    "agent killed",
    "agent started while the API is unavailable",
    "response lost",
    "called while a deleted pod's container without GPUs is listed",
    "called while the watch is behind",
    "card became unhealthy",
    "checkpoint in mid-admission (K30)",
    "checkpoint overtaken (K33)",
    "deleted by force",
    "kubelet killed",
    "kubelet killed in mid-admission",
    "name reused with other sizes while the watch is behind",
    FORGOTTEN,
    "devices of an init container forgotten (K15)",
    "refused between two resources, new List",
    "refused between two resources, old List",
    "static pod",
    "unknown cards in annotations",
    "watch broken",
    "whole cards, refused by another plugin",
)
"""The faults that must have happened in a long run."""


Choices = Sequence[tuple[int, Callable[[], None]]]

_EAGER = 0.25
"""Probability of a fault at each point where faults may happen."""

_LOST = 0.01
"""Probability that a response is lost."""


class Faults:
    """Causes events and faults in a world: one for each method call, or random ones.

    Random ones come at every point where faults may happen, unless it is paused.
    """

    def __init__(self, world: World, random: Random, *, divided: bool) -> None:
        self.world = world
        self._random = random
        self._divided = divided
        self._count = 0
        self._before: Pod | None = None
        self._striking = False
        self.paused = False
        # The usual events of a node, then the rare self.
        self._mild: Choices = (
            (12, self.deliver),
            (12, self.start_one),
            (4, self.end_one),
            (4, self.write_statuses),
            (3, self.write_patches),
            (3, self.look),
            (2, self.restart_container),
            (2, self.delete_by_force),
            (2, self.delete),
            (2, self.clean_up),
            (2, self.reuse_name),
            (2, self.fail_a_get),
            (1, self.refresh),
            (3, self.send_devices),
        )
        self._rare: Choices = (
            (6, self.kill_agent),
            (3, self.api),
            (4, self.list),
            (1, self.health),
            (1, self.static_pod),
            (1, self.break_watch),
        )

    def note(self, fault: str) -> None:
        self.world.faults[fault] += 1
        self.world.trace(f"* {fault}")

    def _one(self, pods: Sequence[Pod]) -> Pod | None:
        return self._random.choice(pods) if pods else None

    # --- pods -----------------------------------------------------------------------------

    def bind_a_burst(self) -> None:
        """Bind some pods, as far as the free cores by count allow."""
        if self.world.api.away:
            return
        for _ in range(self._random.choice((1, 2, 4, 8, 12))):
            self._count += 1
            self._bind(f"p{self._count}")

    def _bind(self, name: str) -> None:
        world = self.world
        pod = draw_pod(
            *(self._count, name, world.cards_here, self._random, self._before),
            divided=self._divided,
        )
        self._before = pod
        bound = [each for each in world.api.pods() if each.phase not in TERMINAL_PHASES]
        free = len(world.cards_here) * 100 - sum(map(_cores, bound))
        if _cores(pod) > free or world.api.named("default", name):
            return
        if "GPU-elsewhere" in pod.annotations.get(NAMES.gpu_allocation, ""):
            self.note("unknown cards in annotations")
        world.judge.add_pod(pod)
        world.api.add(pod)
        world.kubelet.bind(pod)
        world.trace(f"* bound {pod.uid} {[(c.name, c.cores, c.memory) for c in pod.containers]}")

    def _a_pod(self) -> Pod | None:
        """Return a random pod that its owner can delete now."""
        pods = [each for each in self.world.api.pods() if not each.static]
        if not pods or self.world.api.away:
            return None
        return self._random.choice(sorted(pods, key=lambda each: each.uid))

    def reuse_name(self) -> None:
        """Delete a pod by force and create another with its name and other requests."""
        pod = self._a_pod()
        if pod is None:
            return
        self._force(pod)
        self._count += 1
        self._bind(pod.name)
        kubelet, judge, uid = self.world.kubelet, self.world.judge, f"u{self._count}-{pod.name}"
        if kubelet.admitting is pod:
            judge.remade.append({pod.uid, uid})
        elif any(each.pod.uid == pod.uid for each in kubelet.state.listed()):
            if kubelet.admitting:
                judge.remade_beside[uid] = judge.step
            elif self.world.uncalled:
                judge.remade_beside[uid] = judge.step + 1
        if self.world.watch.behind:
            self.note("name reused with other sizes while the watch is behind")

    def delete_by_force(self) -> None:
        pod = self._a_pod()
        if pod is not None:
            self._force(pod)

    def _force(self, pod: Pod) -> None:
        self.note("deleted by force")
        self.world.trace(f"  {pod.uid}")
        self.world.api.remove(pod)
        self.world.kubelet.deleted_by_force(pod, keeps=self._random.random() < 0.5)

    def delete(self) -> None:
        pod = self._a_pod()
        if pod is None:
            return
        if pod in self.world.kubelet.running():
            pod.deleting = True
            self.world.kubelet.deleting(pod)
            self.world.api.changed(pod)

    def clean_up(self) -> None:
        world = self.world
        for pod in world.api.pods():
            if pod.phase in TERMINAL_PHASES and not world.api.away and not pod.static:
                world.api.remove(pod)
                world.kubelet.removed(pod)

    def static_pod(self) -> None:
        """Add a static pod, with or without a mirror in the API."""
        world = self.world
        self._count += 1
        pod = draw_pod(
            *(self._count, f"static{self._count}-node", world.cards_here, self._random),
            divided=self._divided,
        )
        pod.static, pod.annotations = True, {}
        self.note("static pod")
        world.kubelet.statics.append(pod)
        world.kubelet.bind(pod)
        if self._random.random() < 0.5 and not world.api.away:
            pod.mirror_uid = f"mirror-{pod.uid}"
            world.api.add(pod)
        world.judge.add_pod(pod)

    def end_one(self) -> None:
        kubelet = self.world.kubelet
        zombie = self._one(kubelet.zombies()) if self._random.random() < 0.3 else None
        pod = zombie or self._one(kubelet.running())
        if pod is not None:
            self._end(pod)

    def _end(self, pod: Pod) -> None:
        world = self.world
        if pod.static:
            if world.api.away:
                return
            if pod in world.kubelet.statics:
                world.kubelet.statics.remove(pod)
            world.api.remove(pod)
        world.trace(f"* ends: {pod.uid}")
        world.kubelet.end(pod)

    def start_one(self) -> None:
        pod = self._one(self.world.kubelet.starting())
        if pod is not None and not self.world.proving:
            self.world.try_to_start(pod, self.world.kubelet.to_start(pod)[0])

    def restart_container(self) -> None:
        pod = self._one(self.world.kubelet.running())
        if pod is not None and not self.world.proving:
            main = [each for each in pod.containers if not each.hands_on]
            self.world.try_to_start(pod, self._random.choice(main))

    # --- API server, List and device lists ------------------------------------------------

    def deliver(self) -> None:
        self.world.watch.deliver(self._random.choice((1, 1, 2, 4, 100)))

    def write_statuses(self) -> None:
        self.world.kubelet.write_statuses(self._random.choice((1, 2, 100)))

    def write_patches(self) -> None:
        self.world.api.write()

    def look(self) -> None:
        self.world.look()

    def refresh(self) -> None:
        if not self.world.proving:
            self.world.refresh()

    def break_watch(self) -> None:
        self.note("watch broken")
        self.world.watch.end()

    def fail_a_get(self) -> None:
        self.world.api.failing = 1

    def api(self) -> None:
        api = self.world.api
        api.away = not api.away
        if self._random.random() < 0.5:
            self.deliver()  # the watch gets this now; otherwise later

    def list(self) -> None:
        self.world.list_error = "unavailable"
        self.note("List unavailable")

    def send_devices(self) -> None:
        """Send the plugin's device list again, perhaps in the middle of an admission (K30)."""
        kubelet = self.world.kubelet
        if kubelet.connected:
            half = kubelet.behind
            kubelet.advertise()
            if half and not kubelet.behind:
                self.note("checkpoint in mid-admission (K30)")

    def admitted(self, pod: Pod) -> None:
        """Count a fault if the checkpoint lacks devices of an admitted pod (K33)."""
        kubelet, known = self.world.kubelet, self.world.kubelet.state.pods.get(pod.uid)
        if known is not None and not known.finished:
            names = [each.name for each in pod.containers]
            if any(kubelet.saved(pod.uid, each) != kubelet.of(pod, each) for each in names):
                self.note("checkpoint overtaken (K33)")

    def may_see_again(self) -> None:
        if self._random.random() < 0.2:
            self.world.list_error = ""

    def forget(self, call: Call | None) -> None:
        """End another pod and call ``List`` while a call has device IDs in flight (K15)."""
        kubelet = self.world.kubelet
        devices = kubelet.state.devices
        pods = [each for each in kubelet.running() + kubelet.ended() if each.uid in devices.pods]
        if not pods or call is None:
            return
        other, before = self._random.choice(pods), devices.allocated
        if other in kubelet.running():
            self._end(other)
        self.world.look()
        if devices.allocated is not before:
            init = call.container.hands_on
            self.note("devices of an init container forgotten (K15)" if init else FORGOTTEN)

    def health(self) -> None:
        world = self.world
        if world.unhealthy:
            world.unhealthy.clear()
        else:
            self.note("card became unhealthy")
            world.unhealthy[self._random.choice(world.cards_here)] = "xid"
            world.could.clear()
        world.kubelet.unhealthy = {
            each
            for card in world.unhealthy
            for resource in Resource
            for each in world.table.by_card(resource)[card]
        }
        if world.kubelet.connected:
            world.kubelet.advertise()

    # --- agents and kubelets --------------------------------------------------------------

    def kill_agent(self) -> None:
        if self.world.call_now is None:
            self.note("agent killed")
            self._next_agent()

    def lose_response(self) -> None:
        """Kill the agent after it has handled a call; its response is lost."""
        self.note("response lost")
        self._next_agent()

    def _next_agent(self) -> None:
        if self.world.api.away:
            self.note("agent started while the API is unavailable")
        self.world.restart_agent()

    def restart_kubelet(self) -> None:
        """Kill and restart the kubelet; the agent registers with it, at once or later."""
        self.note("kubelet killed")
        held = self.world.resources_held()
        self.world.kubelet.restart()
        self.world.lost |= {each[:2] for each in held - self.world.resources_held()}
        self.world.could.clear()
        self.world.passed.clear()
        if self._random.random() < 0.2:
            self.note("agent and kubelet killed together")
            self._next_agent()
        elif self._random.random() < 0.9:
            self.world.register()

    # --- chance ---------------------------------------------------------------------------

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
                self.forget(call)
            return
        while random.random() < _EAGER:
            self._run_one(self._mild)
        if where == "list":
            return
        self.may_see_again()
        if random.random() < 0.03:
            self._run_one(self._rare)
        if where == "call" and random.random() < 0.006:
            self.note("kubelet killed in mid-admission")
            raise KubeletKilled
        if where == "call" and random.random() < 0.006:
            self.kill_agent()  # the device plugin proxy calls the next one

    def loses(self) -> bool:
        """Return whether this response is lost: the agent is killed before the proxy has it."""
        if self._striking or self.paused or self._random.random() > _LOST:
            return False
        self.lose_response()
        return True

    def _run_one(self, choices: Choices) -> None:
        [fault] = self._random.choices(
            [each for _, each in choices], [weight for weight, _ in choices]
        )
        fault()


def _cores(pod: Pod) -> int:
    """Count cores as a scheduler does."""
    init = [each.cores for each in pod.containers if each.hands_on]
    rest = [each.cores for each in pod.containers if not each.hands_on]
    return max(sum(rest), *init, 0)
