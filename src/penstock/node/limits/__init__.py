"""What others can make a node hold: memory, file descriptors, lines in its log."""
