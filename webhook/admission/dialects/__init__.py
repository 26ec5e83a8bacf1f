"""Pods written for other systems that share GPUs, translated into our resources. Pure.

One module for each system, with one function that reads what its authors write. What this becomes
here, the patch and the texts, is decided once for all, in ``translation``.
"""
