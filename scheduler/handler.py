"""Handles kube-scheduler's verbs: body in, response out, with metrics and log.

It imports no HTTP library; :mod:`scheduler.app` does. Errors of filter and bind are responses with
status 200 and an ``Error``, because kube-scheduler reports only the number of any other status.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from common.serving.app import JSON, TEXT, HttpResponse
from common.serving.errors import BadRequest
from contract.names import Names
from scheduler.binding import Binder
from scheduler.decisions import Decisions
from scheduler.errors import BindError
from scheduler.groups import filter_nodes
from scheduler.metrics import BIND, FILTER, PREEMPT, Metrics
from scheduler.nominations import group_of
from scheduler.preemptors import Preemptors
from scheduler.protocol import (
    decode_args,
    decode_binding,
    decode_preemption,
    encode_bound,
    encode_filter_error,
    encode_filtered,
    encode_preemption,
    encode_scores,
)
from scheduler.refused import RefusedPods
from scheduler.state import read_undecided

INTERNAL = "internal error, see the log of the scheduler extender"
NOT_IN_STEP = "not ready yet: nodes and pods are being listed"

_TICK = 0.1
_log = logging.getLogger(__name__)
_TITLE = "gpu-turnstile: "  # kube-scheduler does not report which extender a reason is from


@dataclass(eq=False, kw_only=True)
class ExtenderHandler:
    """Handles requests.

    Attributes:
        in_step: returns whether the state is complete and up to date.
        not_binding: returns why this replica must not bind; empty if it may.
        patience: seconds for which a request to bind waits until this replica may.
        term: returns the kube-scheduler whose requests are handled; empty if none leads here.
        preemptors: pods that fit on no node, for which others are evicted; ``None`` if none are.
        refused: remembers pods that fit on no node, to be asked about again; ``None`` if none are.
        read_enough: returns how many pods of a group kube-scheduler binds together, at least;
            ``None`` if that cannot be read.
        clock: monotonic seconds.
        wait: sleeps for some seconds before it is checked again whether this replica may bind.
    """

    decisions: Decisions
    binder: Binder
    names: Names
    metrics: Metrics
    in_step: Callable[[], bool]
    not_binding: Callable[[], str]
    patience: float = 0.0
    term: Callable[[], str] = lambda: ""
    preemptors: Preemptors | None = None
    refused: RefusedPods | None = None
    read_enough: Callable[[str], int | None] = lambda _group: None
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep

    def decide(self, verb: str, read_body: Callable[[], bytes]) -> HttpResponse:
        """Handle a request to filter or score nodes, or to look over victims. Thread-safe.

        *read_body* raises :class:`BadRequest` if the body is unreadable.
        """
        started = time.perf_counter()
        try:
            decide = {FILTER: self._filter, PREEMPT: self._preempt}.get(verb, self._prioritize)
            body = decide(read_body())
        except Exception as error:  # noqa: BLE001 - _fail distinguishes them
            return self._fail(verb, error)
        return self._respond(verb, started, body)

    async def bind(self, read_body: Callable[[], bytes]) -> HttpResponse:
        """Handle a request to bind a pod; *read_body* is as of :meth:`decide`."""
        started = time.perf_counter()
        try:
            body = await self._bind(read_body())
        except Exception as error:  # noqa: BLE001 - _fail distinguishes them
            return self._fail(BIND, error)
        return self._respond(BIND, started, body)

    def _respond(self, verb: str, started: float, body: bytes) -> HttpResponse:
        self.metrics.count_response(verb, time.perf_counter() - started)
        return HttpResponse(HTTPStatus.OK, JSON, body)

    def _fail(self, verb: str, error: Exception) -> HttpResponse:
        if isinstance(error, BadRequest | BindError):
            _log.warning("not done", extra={"verb": verb, "reason": str(error)})
            return self._error(verb, str(error), malformed=isinstance(error, BadRequest))
        # A bug of ours: only the log gets the traceback.
        _log.error("failed", extra={"verb": verb}, exc_info=error)
        return self._error(verb, INTERNAL, malformed=False)

    def _error(self, verb: str, text: str, *, malformed: bool) -> HttpResponse:
        self.metrics.failed(verb)
        if verb == FILTER:
            return HttpResponse(HTTPStatus.OK, JSON, encode_filter_error(_TITLE + text))
        if verb == BIND:
            return HttpResponse(HTTPStatus.OK, JSON, encode_bound(_TITLE + text))
        if malformed:  # the responses to the others have no field for an error
            return HttpResponse(HTTPStatus.BAD_REQUEST, TEXT, f"{text}\n".encode())
        body = encode_preemption(None) if verb == PREEMPT else encode_scores((), ())
        return HttpResponse(HTTPStatus.OK, JSON, body)

    def _filter(self, body: bytes) -> bytes:
        args = decode_args(body)
        pod = read_undecided(args.pod, self.names)
        if not self.in_step():
            raise BindError(NOT_IN_STEP)
        state, group = self.binder.state, group_of(args.pod)
        given_up = state.give_up_other_groups(group)
        if self.refused is not None and given_up:
            self.refused.pass_over(given_up)
        found = filter_nodes(state, self.decisions, pod, args)
        if self.refused is not None and pod is not None:
            self.refused.consider(pod, found, group)
        if group and not found.fitting and not state.nominations.has_read_enough(group):
            enough = self.read_enough(group)
            with state.lock:
                state.nominations.set_enough(group, enough, state.now())
        if self.preemptors is not None and pod is not None:
            why = self.not_binding()
            if self.preemptors.consider(args.pod, pod, found) and why:
                raise BindError(why)  # the next attempt reaches the leader, which preempts
        self.metrics.filtered(len(found.fitting), len(found.failed), len(found.unresolvable))
        return encode_filtered(args, found.titled(_TITLE))

    def _prioritize(self, body: bytes) -> bytes:
        args = decode_args(body)
        pod = read_undecided(args.pod, self.names)
        return encode_scores(args.names, self.decisions.scores(pod, args.names, args.nodes))

    def _preempt(self, body: bytes) -> bytes:
        """Leave kube-scheduler's victims as they are, or evict others instead."""
        args = decode_preemption(body)
        pod = read_undecided(args.pod, self.names)
        taken = (
            pod is not None
            and self.preemptors is not None
            # Until it leads, nobody is evicted: it then has kube-scheduler ask again.
            and (bool(self.not_binding()) or self.preemptors.take_over(args.pod, pod, args.victims))
        )
        return encode_preemption(None if taken else args)

    async def _bind(self, body: bytes) -> bytes:
        args = decode_binding(body)
        why = await self._wait_until_binding()
        if why:
            self.metrics.bound("not-leader")
            raise BindError(why)
        cards = await self.binder.bind(args)
        _log.info(
            "bound",
            extra={"pod": f"{args.namespace}/{args.name}", "node": args.node, "cards": cards},
        )
        return encode_bound()

    async def _wait_until_binding(self) -> str:
        """Return why this replica must not bind, at the end of its patience; empty if it may."""
        until, term = self.clock() + self.patience, self.term()
        # A thread decides who leads.
        while (why := self.not_binding()) and self.clock() < until:
            await self.wait(_TICK)
            term = term or self.term()
            if self.term() != term:
                # The next one has chosen a node for this pod by itself.
                return "the kube-scheduler that sent the request leads no more"
        return why
