"""``python -m benchmarks.peers.adapters NAME COMMAND …``: run an adapter under its real module name.

Workers import the tasks by that name.
"""

import importlib
import sys

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    importlib.import_module(f"benchmarks.peers.adapters.{name}").ADAPTER.main(arguments)
