"""Other systems for delayed jobs beside ours: ``python -m benchmarks.peers``."""
