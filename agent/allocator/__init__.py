"""For which container a call of the kubelet is, and which slots it gets.

Start at ``calls.py``: observe, resolve, place or check, assign, save, respond. What decides is
pure: ``resolver``, ``snapshot``, ``snapshot_pod``, ``identity``, ``corrections``, ``current_pod``,
``placer``, ``search_input``, ``grants``. ``node_state`` keeps what was seen, under one lock;
``observer`` asks. What they need from outside comes through the Protocols of ``interfaces`` and
``outcomes``: no I/O here.
"""
