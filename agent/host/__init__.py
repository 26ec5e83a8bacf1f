"""What the operating system lends this process: files, sockets, memory, directories.

Operating system calls only: no cluster, no GPU, no library.
"""
