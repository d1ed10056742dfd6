#!/usr/bin/env bash
# The short form of the model check as one of the programs that tests/run.sh runs. Prints TAP.
exec bash "${LEASE_SOURCE:?run by tests/run.sh}/tests/model/run.sh" --quick --tap
