"""Settings that every test folder shares."""

import os
import signal

from hypothesis import settings

# A first call may compile a kernel, and the machines that run this are busy: time is no property.
settings.register_profile("greedw", deadline=None)
settings.load_profile("greedw")

# A shell without job control ignores SIGINT for what runs in its background, and children inherit
# that; here they must be interrupted as a person would do it. SIGHUP the same, under nohup.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The developer's own node must stay out of it.
os.environ.pop("GREEDW_STATE_DIR", None)
os.environ.pop("NOTIFY_SOCKET", None)
