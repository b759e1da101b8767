"""Names and labels by which what is ours on an engine is told from everything else."""

from __future__ import annotations

LABEL_RUN, LABEL_TRIAL, LABEL_OWNER = "tbench.run", "tbench.trial", "tbench.owner"
LABEL_SHARED, LABEL_IMAGE = "tbench.shared", "tbench.image"
LABEL_SNAPSHOT = "tbench.snapshot"
"""On images made of a sandbox: SNAPSHOT_KEPT, or SNAPSHOT_VERIFYING while its owner verifies in a copy of it."""
SNAPSHOT_KEPT, SNAPSHOT_VERIFYING = "kept", "judging"
KEPT_PREFIX = "tbench-kept-"
"""Names of containers that were kept; labels cannot be changed any more."""
NETWORK = "tbench"
"""The bridge that all trials share."""
