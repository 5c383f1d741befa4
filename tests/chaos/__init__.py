"""Faults, one after the other, on real servers and workers under load; what happened stands in files outside the server.

``python -m tests.chaos`` runs all of them, see ``--help``. As a Django app it brings the task of the load.
"""
