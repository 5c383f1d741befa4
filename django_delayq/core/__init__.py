"""The life of a job on the server, from the call that stores it to the call that ends it.

Each function of these modules returns a `Call`: one bounded script call, described without I/O, which ``calls``
makes. ``worker`` and ``queues`` decide when to call; ``jobs`` knows what a payload means.
"""
