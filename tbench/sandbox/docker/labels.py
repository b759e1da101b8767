"""Names and labels that tell our things on an engine from everything else."""

from __future__ import annotations

LABEL_RUN, LABEL_TRIAL, LABEL_OWNER = "tbench.run", "tbench.trial", "tbench.owner"
LABEL_SHARED, LABEL_IMAGE = "tbench.shared", "tbench.image"
LABEL_SNAPSHOT = "tbench.snapshot"
"""Label of images made of a sandbox: SNAPSHOT_KEPT, or SNAPSHOT_VERIFYING, which earlier versions made."""
SNAPSHOT_KEPT, SNAPSHOT_VERIFYING = "kept", "judging"
LABEL_ORIGINAL = "tbench.original"
"""Label of a snapshot: id of the image that the sandbox was made of."""
KEPT_PREFIX = "tbench-kept-"
"""Prefix of the names of kept containers, as labels cannot be changed after creation."""
NETWORK = "tbench"
"""Name of the bridge that all trials share."""
