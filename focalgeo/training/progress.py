"""What a person sees while a network trains."""

import sys

from tqdm import tqdm


class Progress:
    """A bar on a terminal (loss, accuracy, images per second, time left); elsewhere one line per tenth of the way."""

    def __init__(self, total: int, first: int):
        """A display of the way from step `first` to step `total`."""
        self._total = total
        self._tenth = first * 10 // max(total, 1)
        terminal = sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=first, unit="step", dynamic_ncols=True) if terminal else None
        self._text = ""

    def describe(self, text: str) -> None:
        """Say how it goes."""
        self._text = text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def advance(self, step: int) -> None:
        """Show that `step` steps are done."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
        elif step * 10 // self._total > self._tenth and self._text:
            self._tenth = step * 10 // self._total
            print(f"step {step}/{self._total}: {self._text}", file=sys.stderr, flush=True)
            self._text = ""

    def close(self) -> None:
        """End the display."""
        if self._bar is not None:
            self._bar.close()
