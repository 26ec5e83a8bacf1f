"""The service that vcuda-controller registers at, and its generated stubs."""
