#!/bin/sh
# Installs the Debian packages that building, testing and the demo need, when any is missing. As root it uses apt-get; otherwise it
# says what to install and stops. Usage: tools/packages.sh [build|test|demo|fuzz]...
set -eu

build="g++ cmake ninja-build libdnnl-dev libhwy-dev libtbb-dev libre2-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev
  libopenmpi-dev openmpi-bin liburing-dev"
test="libgtest-dev libbenchmark-dev python3"
demo="bible-kjv"
fuzz="clang libclang-rt-14-dev libomp-dev"

wanted=""
for group in "${@:-build}"; do
  case "$group" in
    build) wanted="$wanted $build" ;;
    test) wanted="$wanted $test" ;;
    demo) wanted="$wanted $demo" ;;
    fuzz) wanted="$wanted $fuzz" ;;
    *) echo "usage: $0 [build|test|demo|fuzz]..." >&2; exit 2 ;;
  esac
done

missing=""
for package in $wanted; do
  state=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "zero3d needs these Debian packages, or their like on another system:$missing" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "zero3d needs packages that only root can install. Run this, then the same command again:" >&2
  echo "  sudo apt-get install --no-install-recommends$missing" >&2
  exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null; } ||
  { echo "$0: apt-get could not install:$missing" >&2; exit 1; }
