"""Tests of the commands that list, change and judge what the server has."""
