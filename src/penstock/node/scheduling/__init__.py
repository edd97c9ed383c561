"""When a node's work runs: its clock and timers, long work in slices of the event loop, and threads for blocking work.

The simulator replaces `clock` and `threads`."""
