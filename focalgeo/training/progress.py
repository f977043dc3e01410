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

    def advance(self, step: int, text: str) -> None:
        """Show that `step` steps are done; `text` says how it goes."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
            return
        tenth = step * 10 // self._total
        if tenth > self._tenth and text:
            self._tenth = tenth
            print(f"step {step}/{self._total}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the display."""
        if self._bar is not None:
            self._bar.close()
