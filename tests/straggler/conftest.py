"""Properties here are not races: a busy machine must not fail one for taking 200 ms."""

from hypothesis import settings

settings.register_profile("straggler", deadline=None)
settings.load_profile("straggler")
