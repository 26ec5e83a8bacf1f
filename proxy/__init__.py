"""The device plugin proxy: stands between the kubelet and device plugins.

To a plugin it is the kubelet, to the kubelet it is the plugin. A plugin may die, hang or be
replaced: the kubelet keeps the last list of devices, and its calls wait for the next plugin. It
knows nothing of GPUs, pods or this project's agent, and keeps no state on disk. Why there is one:
docs/decisions/0001-device-plugin-proxy.md.

::

    kubelet  <->  kubelet.py   calls.py     resource.py   roster.py   plugin.py  <->  plugins
                  registers    passes on    follows       decides     dials

What belongs here: what any device plugin needs. Of this project it imports the
generated stubs, the log format and the server of probes, all in ``common``. I/O: unix sockets and
their folders, HTTP for probes and metrics.
"""
