"""The life of a job on the server, from the call that stores it to the one that ends it.

Each function of these modules returns a `Call`: one bounded script call, described without I/O, which ``calls``
makes. When to call is left to ``worker`` and ``queues``, what a payload means to ``jobs``.
"""
