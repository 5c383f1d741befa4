"""placeholder"""

#: Frames in a queue's insertion list from which on its upkeep is felt: a scan of it takes 3 ms.
LONG_LIST = 100_000
