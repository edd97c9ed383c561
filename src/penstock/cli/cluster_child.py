"""A node of `penstock cluster up`: the command line as it is, which ends when its parent does.

The parent holds the other end of this process's stdin and writes nothing to it. When the parent ends in any way, the
system closes that end. This process then stops in order; after GRACE_SECONDS it exits in any case.
"""

import os
import signal
import sys
import threading
import time

GRACE_SECONDS = 20.0
EXIT_ORPHANED = 1


def end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    from penstock.cli.app import main

    threading.Thread(target=end_with_parent, name="penstock-parent", daemon=True).start()
    main(sys.argv[1:])
