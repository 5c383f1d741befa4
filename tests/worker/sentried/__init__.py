"""An app whose worker sends what it would send to Sentry into a file."""
