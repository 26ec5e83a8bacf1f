"""The container runtime's API (CRI v1): the part of it that is used here, and its generated stubs."""
