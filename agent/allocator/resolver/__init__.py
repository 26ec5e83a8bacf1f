"""Which container is asking: rules over the kubelet's record, the API's pods and the ledger.

Pure but for the Protocols it reads pods and the kubelet's record through.
"""
