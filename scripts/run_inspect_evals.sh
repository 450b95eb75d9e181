#!/usr/bin/env bash
# Inspect's public suites on Tinker models; everything is said by: run_inspect_evals.sh --help
#
# Finds a Python for run_inspect_evals.py: $PYTHON, else the clone's .venv, else one on the PATH.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
candidates=("$here/../.venv/bin/python" python3.11 python3 python)
for python in "${PYTHON:-${candidates[@]}}"; do
  if command -v "$python" >/dev/null 2>&1 &&
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exec "$python" "$here/run_inspect_evals.py" "$@"
  fi
done
echo "error: no Python 3.11 or newer at ${PYTHON:-${candidates[*]}}; run make in the clone, or name one: PYTHON=/path/to/python $0" >&2
exit 2
