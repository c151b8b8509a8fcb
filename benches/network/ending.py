"""What the comparisons between network namespaces do when they are told to end."""

import signal
import sys

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def clean_up_when_told_to_end():
    """From now on a signal ends the program by an exception, so that what it made is removed."""
    for name in SIGNALS:
        signal.signal(name, interrupt)


def interrupt(*_):
    """Once: a second signal must not break off the cleaning up."""
    for name in SIGNALS:
        signal.signal(name, signal.SIG_IGN)
    sys.exit(143)
