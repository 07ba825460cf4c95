"""Where the seconds of a job go: start-up, sampling, update, saving (App. C.4, E.5)."""
import time


class Clock:
    """Wall time of a process by its parts; it is in one part at a time."""

    def __init__(self, part):
        self.part, self.began = part, time.time()
        self.parts = {}            # seconds of those that are over

    def begin(self, part):
        """The part that runs is over; seconds count for `part` from here on."""
        now = time.time()
        self.parts[self.part] = self.parts.get(self.part, 0.0) + now - self.began
        self.part, self.began = part, now

    def total(self):
        """Seconds since the clock was made."""
        return sum(self.parts.values()) + time.time() - self.began
