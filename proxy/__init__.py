"""The device plugin proxy, between the kubelet and device plugins.

Plugins register with it as with a kubelet, and it registers with the kubelet as a plugin. If a
plugin ends, hangs or is replaced, the kubelet keeps the last list of devices, and its calls wait
for the next plugin. Drivers for Dynamic Resource Allocation register likewise (``drivers.py``). The
proxy has no code about GPUs, pods or this project's agent, and no state on disk. Why there is
one: docs/decisions/0001-device-plugin-proxy.md.

::

    kubelet  <->  kubelet.py   resource.py   waiting.py   roster.py   plugin.py  <->  plugins
                  registers    lists         calls        decides     dials
    kubelet  <->  drivers.py                 waiting.py   roster.py   drivers.py <->  drivers

Only code that any device plugin or driver needs belongs here. From this project it imports the
generated stubs, the resources that the kubelet knows, the steps of a handover, the log format, the
server of probes and the types of options, all in ``common``. I/O: unix sockets and their
folders, HTTP for probes and metrics.
"""
