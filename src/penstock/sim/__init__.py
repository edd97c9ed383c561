"""The simulator: fake disks (later networks and clocks) on which the real code runs and may fail."""

from penstock.sim.disk import PowerCut, SimDisk, SimFile

__all__ = ["PowerCut", "SimDisk", "SimFile"]
