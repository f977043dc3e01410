"""Random cases are those of --hypothesis-seed, also where CI is set, for which hypothesis has its own profile."""

from hypothesis import settings

settings.register_profile("seeded", derandomize=False, database=None)
settings.load_profile("seeded")
