"""Attacks that were tried by hand once. `table` lists them all."""
