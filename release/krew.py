"""The manifest of ``kubectl gpu`` for krew, kubectl's manager of plugins.

Its form is krew's ``v1alpha2``: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

import yaml

_DESCRIPTION = """\
Shows nodes and their cards with held, free and used amounts, the request and the cards of each pod,
why a pod is pending and how to make it fit, and whether a manifest would fit. For clusters that
share GPUs by gpu-turnstile. It uses your own kubeconfig and rights.
"""
_CAVEATS = """\
Needs Python 3.11 or newer as python3.
"""


def manifest(*, version: str, uri: str, checksum: str) -> str:
    """Return the manifest.

    Args:
        version: version of this project.
        uri: URL of the archive with the program.
        checksum: the archive's SHA-256.
    """
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gpu"},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://github.com/gpu-turnstile/gpu-turnstile",
            "shortDescription": "Show free and held GPUs, and why pods are pending",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": [
                {
                    "selector": {
                        "matchExpressions": [
                            {"key": "os", "operator": "In", "values": ["darwin", "linux"]}
                        ]
                    },
                    "uri": uri,
                    "sha256": checksum,
                    "files": [
                        {"from": "kubectl-gpu", "to": "."},
                        {"from": "LICENSE", "to": "."},
                    ],
                    "bin": "kubectl-gpu",
                }
            ],
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=100)
