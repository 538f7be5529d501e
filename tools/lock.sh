#!/bin/sh
# Write requirements/dev.txt anew from pyproject.toml, requirements/infra.txt from infra.in, the
# image's from both, and emulators' from their own, for all Pythons and platforms at once.
# Usage: sh tools/lock.sh [--upgrade]     Without --upgrade, versions that still fit are kept.
set -eu
cd "$(dirname "$0")/.."

uv=${UV:-uv}
if ! command -v "$uv" >/dev/null; then
    echo "lock: uv is missing; install it with 'pip install uv', or name it: make lock UV=/path/to/uv" >&2
    exit 1
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The group names the project itself for its extra, which is asked for below: left in, it would be
# looked up on an index.
grep -v '^ *"workhorse-lanes\[' pyproject.toml >"$folder/pyproject.toml"
grep -v '^#' requirements/dev.txt >"$folder/dev.txt"

"$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --only-binary :all: \
    --no-header --no-annotate --extra aio --group "$folder/pyproject.toml:dev" "$@" \
    --output-file "$folder/dev.txt" "$folder/pyproject.toml"

{
    grep '^#' requirements/dev.txt
    grep -v '^#' "$folder/dev.txt"
} >"$folder/whole.txt"
cp "$folder/whole.txt" requirements/dev.txt
echo "lock: requirements/dev.txt names $(grep -c '==' requirements/dev.txt) packages"

grep -v '^#' requirements/infra.txt >"$folder/infra.txt"
"$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --only-binary :all: \
    --no-header --no-annotate "$@" --output-file "$folder/infra.txt" requirements/infra.in
{
    grep '^#' requirements/infra.txt
    cat "$folder/infra.txt"
} >"$folder/whole.txt"
cp "$folder/whole.txt" requirements/infra.txt
echo "lock: requirements/infra.txt names $(grep -c '==' requirements/infra.txt) packages"

# Emulators, each in an environment of its own. (fauxqs comes by npm; its package-lock.json is made by
# `npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts` beside it.)
for name in localstack ministack fauxqs; do
    pins=requirements/emulators/$name
    grep -v '^#' "$pins.txt" >"$folder/$name.txt"
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --only-binary :all: --no-header --no-annotate "$@" --output-file "$folder/$name.txt" "$pins.in"
    {
        grep '^#' "$pins.txt"
        cat "$folder/$name.txt"
    } >"$folder/whole.txt"
    cp "$folder/whole.txt" "$pins.txt"
    echo "lock: $pins.txt names $(grep -c '==' "$pins.txt") packages"
done

# What the image installs, in the versions that the tests run with.
sed -n 's/^requires = \["\(.*\)"\]$/\1/p' pyproject.toml >"$folder/build.in"
for name in image image-build; do
    case $name in
    image) set -- --extra aio --extra lean "$folder/pyproject.toml" ;;
    image-build) set -- "$folder/build.in" ;;
    esac
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --only-binary :all: --no-header --no-annotate --constraint "$folder/dev.txt" \
        --output-file "$folder/$name.txt" "$@"
    {
        grep '^#' "requirements/$name.txt"
        cat "$folder/$name.txt"
    } >"$folder/whole.txt"
    cp "$folder/whole.txt" "requirements/$name.txt"
    echo "lock: requirements/$name.txt names $(grep -c '==' "requirements/$name.txt") packages"
done
