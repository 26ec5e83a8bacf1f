"""Create injection and enforcement for the containers of this node, as the settings say.

The parts here depend only on the settings and the cards.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from agent.driver.host import device_on_host
from agent.enforcement.hami import HamiCore
from agent.enforcement.hami_library import HamiLibrary
from agent.enforcement.mps.backend import Limited, Mps
from agent.enforcement.none import NoEnforcement
from agent.enforcement.vcuda.backend import Vcuda
from agent.enforcement.vcuda.config import Hardware
from agent.enforcement.vcuda.manager import Entitled
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import ContainerRef, Holding
from agent.holdings.interfaces import Enforcer
from agent.injection.cdi_file import CdiFile
from agent.injection.inject import CONTROL_DEVICES, Injection, inject, shared_by_all
from agent.observability.series import ContainerLimit, Series, limit_series
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import Cri
from agent.settings import AgentMode, EnforcementMode, Settings
from contract.inventory import Inventory
from contract.runtimes import cdi_problem

log = logging.getLogger(__name__)


class Injector:
    """Turns a holding into container edits."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        *,
        runtime: Callable[[], str] = lambda: "",
        on_host_specs: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        """Prepare to inject the cards of *inventory*; nothing is written yet.

        *runtime* returns the version of the node's container runtime, empty while it is unknown.
        *on_host_specs* is as in :class:`CdiFile`.
        """
        self._settings = settings
        self._inventory = inventory
        self._runtime = runtime
        self._cdi: CdiFile | None = None
        if settings.inject is Injection.CDI:
            self._cdi = CdiFile(
                settings.cdi_dir,
                common=self._common,
                locate=self.locate,
                on_host_specs=on_host_specs,
            )

    def edits_for(self, holding: Holding) -> ContainerEdits:
        """Return the edits that make the cards of a holding available.

        Raises:
            EnforcementError: a CDI spec is needed, and cannot be written, or the container runtime
                reads none.
            GrantError: a card has no CDI name.
        """
        by_cdi = self._cdi is not None or self._settings.mode is AgentMode.DRA
        if by_cdi and (problem := cdi_problem(self._runtime())):
            raise EnforcementError(f"the containers would start without their cards: {problem}")
        names = self._cdi.refresh(self._inventory) if self._cdi is not None else None
        return inject(
            holding,
            self._inventory,
            self._settings.inject,
            control_devices=_control_devices(),
            extra_devices=self._settings.extra_devices,
            driver=self._settings.driver,
            cdi_names=names,
        )

    def refresh(self) -> None:
        """Update the CDI spec: the host may have lost it, or have a new control device."""
        if self._cdi is None:
            return
        try:
            self._cdi.refresh(self._inventory)
        except EnforcementError as error:  # the next pod that needs the spec is refused with it
            log.warning("no CDI spec", extra={"reason": str(error)})

    def locate(self, path: str) -> str:
        """Return the path on the host of a device node, by its path in containers."""
        mounted = self._settings.lays_out_driver  # only then is the host's root mounted
        return device_on_host(self._settings.host_root, path) if mounted else path

    def _common(self) -> ContainerEdits:
        return shared_by_all(control_devices=_control_devices(), driver=self._settings.driver)


def _control_devices() -> tuple[str, ...]:
    """Return the existing control devices; the driver makes some for the first program."""
    return tuple(path for path in CONTROL_DEVICES if Path(path).exists())


class EnforcerRunner:
    """Starts the threads and sockets of an enforcer; retries until the start succeeds.

    They end with the agent: what containers depend on must run elsewhere.

    Attributes:
        problem: why enforcement does not work; empty when it does.
    """

    def __init__(
        self,
        start: Callable[[], None] = lambda: None,
        alive: Callable[[], bool] = lambda: True,
        close: Callable[[], None] = lambda: None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Start nothing yet.

        *start* raises :class:`agent.errors.EnforcementError` if it fails; *alive* returns whether
        the started threads still run; *close* stops them and keeps the files of containers.
        *on_tick* is called from time to time once it is started, and may raise the same.
        """
        self._on_tick = on_tick
        self._start = start
        self._alive = alive
        self._close = close
        self._started = False
        self._closed = False
        self._lock = threading.Lock()
        self.problem = "enforcement is not started yet"

    def tick(self) -> None:
        """Start the enforcer, or let it look again."""
        with self._lock:
            if self._closed:
                return
            try:
                (self._on_tick if self._started else self._start)()
            except EnforcementError as error:
                if str(error) != self.problem:
                    log.error("enforcement cannot be started", extra={"reason": str(error)})
                self.problem = str(error)
            else:
                self._started, self.problem = True, ""

    @property
    def alive(self) -> bool:
        """Whether the started threads still run."""
        return not self._started or self._alive()

    def close(self) -> None:
        """Stop the started threads."""
        with self._lock:
            self._closed = True
            self._close()


def set_up_containers(  # noqa: PLR0913 -- its surroundings, by keyword
    settings: Settings,
    inventory: Inventory,
    *,
    driver: Callable[[], str],
    entitled: Entitled,
    on_registered: Callable[[str], None] = lambda _result: None,
    on_outdated: Callable[[bool], None] = lambda _outdated: None,
    on_unusable: Callable[[str], None] = lambda _problem: None,
    on_daemon_lost: Callable[[ContainerRef, str], None] = lambda _ref, _why: None,
    container_name: Callable[[str, str], str] = lambda _uid, _id: "",
    show_limits: Callable[[Callable[[], Iterable[Series]]], None] = lambda _read: None,
) -> tuple[Enforcer, EnforcerRunner]:
    """Return the enforcer that the settings name, and its runner.

    *driver* returns the driver's version, empty while it is not known. *on_registered* is called
    with the result of each registration at the virtual manager, *on_outdated* with whether the
    host's HAMi-core is too old, *on_unusable* with why it cannot be used. *on_daemon_lost* is
    called for each container whose MPS daemon has ended, with the reason; *container_name* returns
    the name of a container by its pod's UID and its own ID, empty if it is not known; *show_limits*
    gets the function that returns the gauges of MPS.
    """
    if settings.enforcement is EnforcementMode.VCUDA:
        bus_ids = {card.uuid: card.bus_id for card in inventory.cards}
        cri = Cri(settings.cri_socket)
        vcuda = Vcuda(
            state_dir=settings.state_dir,
            processes=Cgroups(),
            runtime=cri,
            entitled=entitled,
            hardware=Hardware(lambda uuid: bus_ids.get(uuid, ""), driver, settings.memory_block),
            on_result=on_registered,
        )

        def close() -> None:
            vcuda.close()
            cri.close()

        return vcuda, EnforcerRunner(vcuda.open, lambda: vcuda.alive, close)
    if settings.enforcement is EnforcementMode.HAMI_CORE:
        hami = HamiCore(
            state_dir=settings.state_dir,
            library=HamiLibrary(
                settings.hami_library_dir, on_outdated=on_outdated, on_problem=on_unusable
            ),
            block=settings.memory_block,
            cards=inventory.cards,
        )
        return hami, EnforcerRunner(hami.open)
    if settings.enforcement is EnforcementMode.MPS:
        mps = Mps(
            settings.mps_dir,
            block=settings.memory_block,
            cards=inventory.cards,
            on_lost=on_daemon_lost,
            container_name=container_name,
        )
        show_limits(lambda: limit_series(_limits(mps.limited()), mps.problems()))
        return mps, EnforcerRunner(mps.open, on_tick=mps.tick)
    return NoEnforcement(), EnforcerRunner()


def _limits(limited: Iterable[Limited]) -> Iterator[ContainerLimit]:
    for share, clients in limited:
        pod = share.ref.pod
        for ordinal, card in enumerate(share.cards):
            labels = pod.namespace, pod.name, share.ref.container, card
            memory = share.memory[ordinal] << 20 if share.memory else None
            yield ContainerLimit(labels, share.percent, memory, clients)
