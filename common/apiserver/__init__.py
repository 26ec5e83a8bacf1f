"""The API server, as agent and scheduler use it: raw JSON over the official client.

No typed models: they cost more per pod than everything that is done with it. Knows nothing of
GPUs; which objects are asked for is a matter of the programs.
"""
