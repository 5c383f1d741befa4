"""One module a peer, run by the Python of that peer's environment; README.md has the protocol."""
