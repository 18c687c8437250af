"""No example of hypothesis has a deadline: a loaded machine stalls for longer than they take."""

from hypothesis import settings

settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")
