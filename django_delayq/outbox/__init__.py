"""An app that commits jobs together with your data: docs/howto/outbox.md.

The *outbox* writes jobs as rows of the caller's transaction; workers send the rows that were not sent at the commit. The
*inbox* writes a row for each job that has run, so that a second run does nothing. If the app is not in INSTALLED_APPS,
nothing of this package is imported.
"""
