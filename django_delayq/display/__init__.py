"""What the admin's pages and the commands show of jobs: plain text, made without I/O."""
