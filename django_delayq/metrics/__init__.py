"""What Prometheus and other programs are answered over HTTP, and who may ask. All figures are on the server already."""
