"""What machines read: Prometheus's text, the overview as JSON, the dashboard and the alerts."""
