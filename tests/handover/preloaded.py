"""What the agents of a stage are forked with: all that an agent imports, and none of it garbage."""

import gc
import importlib

# First what the agent would defer, and import when it is needed.
for _each in ("asyncio", "grpc.aio", "kubernetes.config.kube_config", "watchfiles", "yaml"):
    importlib.import_module(_each)
importlib.import_module("tests.handover.agent_process")

gc.collect()
gc.freeze()
