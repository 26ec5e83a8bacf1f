"""Decides for which container a call of the kubelet is, and which slots it gets.

Start at ``calls.py``: observe, resolve, place or check, assign, save, respond. The modules that
decide are pure: ``resolver``, ``snapshot``, ``snapshot_builder``, ``snapshot_pod``, ``identity``,
``confirmation``, ``corrections``, ``guesses``, ``current_pod``, ``placer``, ``search_input``,
``grants``. What containers hold leaves as holdings (``slot_holdings``). ``node_state`` keeps the
state between calls, under one lock; ``observer`` reads the sources. All I/O is behind the Protocols
of ``interfaces``, and of :mod:`agent.holdings.interfaces`.
"""
