"""Use of the operating system: files, sockets, memory, directories.

Only system calls: no cluster, no GPU, no third-party library.
"""
