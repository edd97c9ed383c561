"""Attacks made from a seed. `table` lists the surfaces that they go to."""
