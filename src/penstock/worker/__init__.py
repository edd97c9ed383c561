"""Worker processes: `penstock worker module:client` runs the workers and schedules of an application in N processes.

The supervisor (supervisor.py) starts each as `python -m penstock.worker` (child.py), which imports the application and
runs its client. The command line shows what it reports (penstock/cli/worker.py).
"""
