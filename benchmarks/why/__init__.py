"""What other ways of waiting lose, shown on a real server: the figures of docs/why.md.

Each script is one question and is run from the project's root: ``python -m benchmarks.why.key_expiry``.
"""
