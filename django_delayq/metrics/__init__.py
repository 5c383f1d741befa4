"""What machines read: Prometheus, and programs that want the overview as JSON. All figures are on the server already."""
