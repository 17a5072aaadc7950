"""Settings that every test folder shares."""

import os

from hypothesis import settings

# A first call may compile a kernel, and the machines that run this are busy: time is no property.
settings.register_profile("greedw", deadline=None)
settings.load_profile("greedw")

# The developer's own node must stay out of it.
os.environ.pop("GREEDW_STATE_DIR", None)
os.environ.pop("NOTIFY_SOCKET", None)
