"""Real nodes, real clients, real faults: the promises of a cluster of processes under crashes and network cuts.

`nodes` starts, kills and pauses processes, `network_cuts` relays their traffic, `load` drives clients and records their
acks, `checks` compares the acks with the stored records.
"""
