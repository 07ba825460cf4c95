"""The progress bar of every script; where standard error is no terminal, a line every 30 s."""
import io
import sys
import threading

from tqdm import tqdm

SECONDS = 30  # from line to line


def new_bar(total, unit, **options):
    """A tqdm bar; options: tqdm's. Elsewhere than on a terminal it draws nothing, and a thread prints lines."""
    if options.get("disable") or sys.stderr.isatty():
        return tqdm(total=total, unit=unit, **options)
    text = "{desc}{n_fmt} of {total_fmt} {unit}s, {elapsed} so far, {remaining} left{postfix}"
    return Lines(total=total, unit=unit, bar_format=text, **options)


class Lines(tqdm):
    """A bar that is said, not drawn."""

    def __init__(self, **options):
        # What tqdm still writes when it closes is for a terminal.
        super().__init__(file=io.StringIO(), **options)
        self.end = threading.Event()
        threading.Thread(target=self.speak, daemon=True).start()

    def speak(self):
        while not self.end.wait(SECONDS):
            print(str(self).strip(), file=sys.stderr, flush=True)

    def display(self, *_, **__):
        """Draws nothing."""

    def close(self):
        # tqdm closes a bar also when its construction failed.
        if hasattr(self, "end"):
            self.end.set()
        super().close()
