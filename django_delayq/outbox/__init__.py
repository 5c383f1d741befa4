"""An app for projects that want a commit and its jobs to be one thing: docs/howto/outbox.md.

The *outbox* writes jobs as rows of the caller's transaction, and has workers send those that nobody has sent. The *inbox*
writes a row for each job that has run, so that another run of it does nothing. Where the app is not in INSTALLED_APPS,
nothing of this package is imported.
"""
