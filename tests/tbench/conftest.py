"""What the tests of the benchmark side share."""

from __future__ import annotations

from hypothesis import settings

# The machine may be busy with containers: an example's duration says nothing.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
