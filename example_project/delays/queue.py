"""The queue behind the raw endpoint: one object a process, as Redisson's users have it.

It transfers what is due for as long as it is in use, here in the site; the worker does, too.
"""

from django_delayq import DelayedQueue

delays = DelayedQueue("delays")
