"""`python -m penstock.worker`: one worker process."""

import sys

from penstock.worker.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
