"""What the allocator knows: pods, device IDs, the kubelet's record, and the ledger.

Plain values and the ledger; pure.
"""
