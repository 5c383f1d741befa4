"""The app whose tasks our worker discovers."""
