"""The WSGI application, with its static files."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example.settings")

# Slow, but nothing to install. In your project, use a web server or WhiteNoise.
application = StaticFilesHandler(get_wsgi_application())
