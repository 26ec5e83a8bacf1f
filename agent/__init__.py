"""The node agent: a device plugin that knows which container each call is for.

Pure modules decide (:mod:`agent.resolve`, :mod:`agent.place`, :mod:`agent.grant`)
over plain data (:mod:`agent.cards.inventory`, :mod:`agent.tickets`, :mod:`agent.podview`,
:mod:`agent.ledger`). :mod:`agent.turnstile` puts the decisions in order and talks to
the outside through Protocols; one adapter module per outside thing implements them.
Third-party libraries are imported by adapters only, each by one.

Banned here: importing the webhook, and files as a checkpoint (the kubelet's own
record is the checkpoint).
"""
