"""The worker: a supervisor, its processes, and in each of them one loop that claims and settles."""
