"""What breaks promises: whole scenarios on worker programs and real servers, one module a family of faults.

What happened is told by a `Ledger` outside the server, so that a server cannot hide what it did.
"""
