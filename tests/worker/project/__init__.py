"""A small Django project and its only app, for workers that tests start."""
