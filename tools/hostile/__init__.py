"""Hostile clients against real nodes, beside honest ones: `make hostile`. docs/hardening.md has the results.

`scenarios` has attacks that were tried by hand once, `generator` makes new ones from a seed. `run` starts nodes for
each, a probe and a canary beside it, and judges what they saw.
"""
