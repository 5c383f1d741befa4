"""An app with a handler for the foreign payloads of a test's queue, whose name is in the environment."""
