"""Tasks and their jobs: the decorator, the registry, the envelope, scheduling and the handle."""
