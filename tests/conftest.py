"""Property tests have no deadline: how long an example takes says more of the machine than of the code."""

from __future__ import annotations

import os

from hypothesis import settings

if not os.environ.get("CI"):  # where Hypothesis has a profile of its own, without a deadline too
    settings.register_profile("flsel", deadline=None)
    settings.load_profile("flsel")
