#!/bin/sh
# Build the container image of infra/image/Dockerfile with whatever engine is there.
# Usage: sh tools/image.sh [options of the engine's build]     Environment: ENGINE, TAG.
set -u
cd "$(dirname "$0")/.." || exit 1

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
tag=${TAG:-workhorse:$version}

# Whether an engine is there and answers; a client without its daemon builds nothing.
answers() {
    case $1 in
    buildah) buildah --version >/dev/null 2>&1 ;;
    *) "$1" info >/dev/null 2>&1 ;;
    esac
}

silent=''
for engine in ${ENGINE:-docker podman finch buildah}; do
    command -v "$engine" >/dev/null 2>&1 || continue
    if answers "$engine"; then
        echo "image: $engine builds $tag" >&2
        exec "$engine" build --file infra/image/Dockerfile --tag "$tag" "$@" .
    fi
    silent="$silent${silent:+, }$engine"
done
if [ -n "$silent" ]; then
    echo "image: $silent is installed, but its daemon does not answer; start it, or install podman or buildah, which need none" >&2
else
    echo "image: no container engine is installed; install docker, podman, finch or buildah${ENGINE:+ (ENGINE=$ENGINE is not there)}" >&2
fi
exit 1
