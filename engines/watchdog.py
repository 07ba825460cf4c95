"""Ends vLLM's processes with ours: a program of its own, started by vllm.py as `watchdog.py PID`.

vLLM's processes outlive a parent that is killed, and on a GPU they would hold its memory. This program notes four
times a second which processes descend from its parent, and when the parent is gone, however that came, it kills
them. Those that were started too late to be noted still have the environment that they were given, with ENGINE_OF
(vLLM overwrites it with a title later). It leaves multiprocessing's resource tracker alone, which frees the shared
memory and then ends by itself.
"""
import os
import sys
import time

import psutil


def watch(parent):
    family = set()     # psutil.Process: one equals another if pid and start time do, as a pid may come again
    empty_scans = 0    # since the parent is gone
    while empty_scans < 10:
        orphaned = os.getppid() != parent
        processes = living_processes()
        family.intersection_update(processes)
        if orphaned:
            family.update(process for process in processes if was_started_for(process, parent))
            add_descendants(family, processes, {process.pid for process in family})
            family = {process for process in family if not ends_by_itself(process)}
            kill(family)
            empty_scans = 0 if family else empty_scans + 1
        else:
            add_descendants(family, processes, {parent} | {process.pid for process in family})
        time.sleep(0.1 if orphaned else 0.25)


def living_processes():
    """-> {psutil.Process: pid of its parent}, this program apart."""
    processes = {}
    for process in psutil.process_iter(["ppid", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            processes[process] = process.info["ppid"]
    return processes


def add_descendants(family, processes, pids):
    """Add to `family` those of `processes` that descend from `pids`."""
    children = {process for process, parent in processes.items() if parent in pids}
    while not children <= family:
        family |= children
        pids = {process.pid for process in children}
        children = {process for process, parent in processes.items() if parent in pids}


def was_started_for(process, parent):
    """Whether its environment, as vllm.py gave it, names `parent`."""
    try:
        return process.environ().get("ENGINE_OF") == str(parent)
    except (psutil.Error, OSError):  # it has just ended, or is another user's
        return False


def ends_by_itself(process):
    try:
        return any("resource_tracker" in argument for argument in process.cmdline())
    except (psutil.Error, OSError):
        return True


def kill(processes):
    for process in processes:
        try:
            process.kill()
        except (psutil.Error, OSError):  # it has just ended
            pass


if __name__ == "__main__":
    watch(int(sys.argv[1]))
