"""The faults of a cluster of three primaries, each with a replica."""
