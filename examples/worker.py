#!/usr/bin/env python3
"""What leasectl runs for each run: a worker in Python.

    leasectl work --dbname app --jobs 4 -- examples/worker.py /var/lib/results

leasectl claims, renews and ends the run; this says by its exit code how: 0 completed, 75 not now,
anything else failed. A lost lease, a cancel request and the end of leasectl all end it by SIGTERM.
"""
import os
import pathlib
import signal
import sys


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: leasectl work -- worker.py FOLDER", file=sys.stderr)
        return os.EX_USAGE
    # an exception instead of the end at once, so that `finally` has its turn
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = pathlib.Path(sys.argv[1])
    run, attempt = os.environ["LEASE_RUN_ID"], os.environ["LEASE_ATTEMPT_NO"]
    if not results.is_dir():
        return os.EX_TEMPFAIL  # 75: later, and then still later
    # under a name of this attempt's own: one whose lease was lost may still be ending
    part = results / f"{run}.{attempt}.part"
    try:
        part.write_text(f"the result of {run}, by {os.environ['LEASE_OWNER']}\n")
        part.rename(results / f"{run}.result")
    finally:
        part.unlink(missing_ok=True)
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
