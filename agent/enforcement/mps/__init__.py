"""Enforcement by NVIDIA's Multi-Process Service (MPS): limits that the driver keeps.

Two programs meet in one folder (``--mps-dir``). The agent writes for each container with a share
what it may use (:mod:`~agent.enforcement.mps.backend`). ``python -m agent.enforcement.mps``, in a
pod of its own that outlives the agent, runs a control daemon for each set of cards that containers
share (:mod:`~agent.enforcement.mps.daemon`), and writes what it sees. The files of both are in
:mod:`~agent.enforcement.mps.files`; the reasons are in docs/decisions/0012-limits-by-mps.md.
"""
