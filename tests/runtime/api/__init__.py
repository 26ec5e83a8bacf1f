"""Generated from ``cri.proto`` by ``make proto``."""
