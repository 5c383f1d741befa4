"""Answers for Prometheus and other programs over HTTP, and who may ask. All figures are on the server already."""
