#!/usr/bin/env bash
# Make sure of the programs that are not Python's. Nothing is done where they are there already.
#
#   install-system.sh [java] [openssl]
#
# IMAGE_USER, set in the Dockerfiles alone: a user to make, who will run the image's programs.
set -euo pipefail

missing=()
for wanted in "$@"; do
  case $wanted in
    java) command -v java >/dev/null || missing+=(openjdk-17-jre-headless) ;;
    openssl) command -v openssl >/dev/null || missing+=(openssl) ;;
    *) echo "install-system.sh does not know $wanted" >&2 && exit 64 ;;
  esac
done
# Spark's start scripts call ps.
command -v ps >/dev/null || missing+=(procps)

if [ "${#missing[@]}" -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing here: ${missing[*]}. Install them, then run this again." >&2
    exit 1
  fi
  # Where manual pages are left out, as in slim images, Java's package still wants their directory.
  mkdir -p /usr/share/man/man1
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  rm -rf /var/lib/apt/lists/*
fi

if [ -n "${IMAGE_USER:-}" ] && ! id "$IMAGE_USER" >/dev/null 2>&1; then
  useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin "$IMAGE_USER"
fi
