"""`python -m penstock.cli`: the same as `penstock`, for processes that must use this very interpreter."""

from penstock.cli.app import main

main()
