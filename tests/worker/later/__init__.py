"""An app that makes a program one of the later version, see `tests.later`; for ``WORKER_TEST_APPS``."""
