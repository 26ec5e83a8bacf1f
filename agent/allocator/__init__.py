"""Decide which container a call of the kubelet is for, and which places it gets.

Who holds what, who asks and which guesses were wrong are pure: ``record``, ``identity``,
``resolver``, ``corrections`` and ``in_service`` take values and return values. ``node_state`` keeps
them under one lock, ``observer`` asks the sources, and each call has a module of its own.

No third-party library, no files and no sockets. Adapters come in as the Protocols of
``model.ports``, the one file of our own as ``saved_state.Store``.
"""
