from hypothesis import settings

# A machine that is busy with other tests is no finding.
settings.register_profile("codecs", deadline=None, max_examples=60)
settings.load_profile("codecs")
