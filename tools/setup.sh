#!/bin/sh
# Make .venv ready: the first half, in sh, since it has to find a Python first.
# Usage: sh tools/setup.sh     Environment: PYTHON, the interpreter to use instead of a search.
set -u
cd "$(dirname "$0")/.." || exit 1

# The usual case: everything stands already. One start of the environment's own Python says so.
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] &&
    .venv/bin/python -I tools/bootstrap.py --ready 2>/dev/null; then
    exit 0
fi

say() {
    echo "setup: $*" >&2
}

# Prints e.g. 311 for Python 3.11; nothing for what is no Python.
version_of() {
    "$1" -I -S -c 'import sys; print("%d%02d" % sys.version_info[:2])' 2>/dev/null
}

# Debian and others ship `venv` without the pip that it would install.
has_venv() {
    "$1" -I -c 'import ensurepip, venv' 2>/dev/null
}

best='' best_rank=0 without_venv='' too_old=''
# (A path given in PYTHON may hold spaces.)
if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11
fi
for candidate in "$@"; do
    version=$(version_of "$candidate") || continue
    if [ "$version" -lt 311 ]; then
        too_old=$("$candidate" -V 2>&1)
        continue
    fi
    if ! has_venv "$candidate"; then
        without_venv=$candidate
        continue
    fi
    # What the project is tested on comes before what is newer than that.
    rank=$version
    [ "$version" -gt 313 ] && rank=1
    if [ "$rank" -gt "$best_rank" ]; then
        best=$candidate best_rank=$rank
    fi
done

if [ -z "$best" ]; then
    if [ -n "$without_venv" ]; then
        say "the venv module of $without_venv is missing (on Debian and Ubuntu: apt-get install python3-venv)"
    else
        say "Python 3.11 or newer is missing${PYTHON:+ at PYTHON=$PYTHON}${too_old:+ ($too_old)}; install it, or name one: make setup PYTHON=/path/to/python3"
    fi
    exit 1
fi
exec "$best" -I tools/bootstrap.py
