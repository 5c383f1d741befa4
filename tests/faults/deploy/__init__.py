"""An app that only the newer workers of a deploy have."""
