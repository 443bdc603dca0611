"""Settings of all tests."""

from hypothesis import settings

# How long an example takes says something about the machine, not about the code. A run tries the
# same examples every time, so it fails for what was changed; `--hypothesis-profile=explore` tries
# others, and many more where a test does not say how many.
settings.register_profile("promptprefix", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2_000)
settings.load_profile("promptprefix")
