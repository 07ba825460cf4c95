"""Ends vLLM's processes with ours: a program of its own, started by vllm.py as `watchdog.py PID`.

vLLM's processes outlive a parent that is killed, and on a GPU they would hold its memory. This program notes four
times a second which processes descend from its parent, and when the parent is gone, however that came, it kills
them. Those that were started too late to be noted still have the environment that they were given, with ENGINE_OF
(vLLM overwrites it with a title later). It leaves multiprocessing's resource tracker alone, which frees the shared
memory and then ends by itself.
"""
import os
import signal
import sys
import time


def watch(parent):
    family, quiet = {}, 0
    mark = f"ENGINE_OF={parent}".encode()
    while quiet < 50:  # scans without any
        alive, processes = os.getppid() == parent, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    state, ppid, *fields = stat.read().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if state != "Z":
                processes[int(pid)] = int(ppid), fields[17]  # with its start time: a pid may come again
        family = {pid: start for pid, start in family.items() if pid in processes and processes[pid][1] == start}
        if not alive:
            for pid, (_, start) in processes.items():
                try:
                    with open(f"/proc/{pid}/environ", "rb") as environ:
                        if mark in environ.read().split(bytes(1)):
                            family[pid] = start
                except OSError:  # it has just ended, or is another user's
                    pass
        found = True
        while found:
            found = {pid: start for pid, (ppid, start) in processes.items() if pid not in family and pid != os.getpid()
                     and (ppid in family or alive and ppid == parent)}
            family |= found
        if not alive:
            for pid in list(family):
                try:
                    with open(f"/proc/{pid}/cmdline") as cmdline:
                        if "resource_tracker" in cmdline.read():
                            del family[pid]
                        else:
                            os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            quiet = 0 if family else quiet + 1
        time.sleep(0.25 if alive else 0.02)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
