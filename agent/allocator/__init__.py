"""Which container a call is for, which places it gets, and what is known of both.

Decisions: no third-party library, no files and no sockets. Adapters come in as the Protocols
of ``model.ports``.
"""
