"""``python -m benchmarks.soak``: an hour of steady load, and whether anything grows, is lost, runs twice or runs early."""
