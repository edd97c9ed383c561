"""Real nodes, real clients, real faults: what a cluster of processes keeps when it is ill-treated.

`nodes` starts and hurts processes, `cuts` stands between them, `load` drives clients and notes what they were promised,
`verdict` compares the promises with what is there.
"""
