"""Programs for developers of Penstock; none of them is installed with it."""
