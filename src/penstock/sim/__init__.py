"""The simulator: virtual time, disks and networks in which the real code runs and may fail. `checks` has what must hold."""

from penstock.sim.disk import PowerCut, SimDisk, SimFile

__all__ = ["PowerCut", "SimDisk", "SimFile"]
