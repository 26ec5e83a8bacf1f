"""The node agent: a device plugin that knows which container each call is for.

Pure modules decide (:mod:`agent.allocator.resolver.resolve`, :mod:`agent.place`, :mod:`agent.allocator.model.grant`)
over plain data (:mod:`agent.cards.inventory`, :mod:`agent.allocator.model.tickets`, :mod:`agent.allocator.model.pod_view`,
:mod:`agent.allocator.model.ledger`). :mod:`agent.allocator.allocator` puts the decisions in order and talks to
the outside through Protocols; one adapter module per outside thing implements them.
Third-party libraries are imported by adapters only, each by one.

Banned here: importing the webhook, and files as a checkpoint (the kubelet's own
record is the checkpoint).
"""
