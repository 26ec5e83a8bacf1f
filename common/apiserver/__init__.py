"""Access to the API server: raw JSON over urllib3.

There are no typed models: to build them costs more per pod than all other work with it. Nothing
here is about GPUs; the programs decide which objects they read.
"""
