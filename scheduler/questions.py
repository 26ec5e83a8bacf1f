"""Questions about nodes, read; what was asked or answered a moment ago is not read again.

kube-scheduler sends the same pod to filter and, a millisecond later, to prioritize, with the nodes
that filter has answered, and to read both costs more than to decide. They are known again by their
bytes: nothing that a sender claims is believed.
"""

from collections import OrderedDict

from contract.names import Names
from placement.cluster.pods import Pod, parse_pod
from scheduler.protocol import (
    ExtenderArgs,
    decode_args,
    decode_names,
    decode_pod,
)

_MOST_PODS = 16
_LONGEST_POD = 2**16
_MOST_LISTS = 8
_LONGEST_LIST = 2**17
_NAMES_FOLLOW = b',"Nodes":null,"NodeNames":'


class Questions:
    """The questions of kube-scheduler. Safe to share between threads."""

    def __init__(self, names: Names) -> None:
        """Start without any.

        Args:
            names: the contract's names.
        """
        self._names = names
        self._pods: OrderedDict[bytes, Pod | None] = OrderedDict()
        self._lists: OrderedDict[bytes, ExtenderArgs] = OrderedDict()

    def read(self, body: bytes) -> tuple[Pod | None, ExtenderArgs]:
        """Read a body.

        Returns:
            The pod, ``None`` for one that asks for no GPU, and the nodes asked about.

        Raises:
            BadRequest: it is not what kube-scheduler sends.
        """
        # No text holds these bytes, for a quotation mark in it is escaped. Where what follows is
        # an object by itself, so is what stands before.
        end = body.rfind(_NAMES_FOLLOW)
        asked_about = self._names_in(body[end + 1 :]) if 0 < end <= _LONGEST_POD else None
        if asked_about is None:
            args = decode_args(body)
            return parse_pod(args.pod, self._names), args
        part = body[:end]
        try:
            pod = self._pods[part]
        except KeyError:
            pod = self._pods[part] = parse_pod(decode_pod(part + b"}"), self._names)
            if len(self._pods) > _MOST_PODS:
                self._pods.popitem(last=False)
        return pod, asked_about

    def expect(self, args: ExtenderArgs) -> None:
        """Expect a question about the nodes that filter answers, by their names."""
        if args.written:
            self._remember(_NAMES_FOLLOW[1:] + args.written + b"}", args)

    def _names_in(self, part: bytes) -> ExtenderArgs | None:
        known = self._lists.get(part)
        if known is not None:
            return known
        args = decode_names(b"{" + part)
        if args is not None:
            self._remember(part, args)
        return args

    def _remember(self, part: bytes, args: ExtenderArgs) -> None:
        if len(part) <= _LONGEST_LIST:
            self._lists[part] = args
            if len(self._lists) > _MOST_LISTS:
                self._lists.popitem(last=False)
