#!/usr/bin/env bash
# Inspect's public suites on Tinker models; everything is said by: run_inspect_evals.sh --help
#
# Finds a Python for run_inspect_evals.py: $PYTHON, the clone's .venv, else the first on the PATH.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
for python in ${PYTHON:+"$PYTHON"} "$here/../.venv/bin/python" python3.11 python3 python; do
  if command -v "$python" >/dev/null 2>&1 &&
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exec "$python" "$here/run_inspect_evals.py" "$@"
  fi
done
echo "error: no Python 3.11 or newer found; run make in the clone, or name one: PYTHON=/path/to/python $0" >&2
exit 2
