#!/usr/bin/env bash
# What an image has beside Python, on any Debian base.
#
#   install-system.sh user ID                        make the user s3commit, who runs the image's programs
#   install-system.sh programs [java] [openssl]      make sure of these; nothing is done where they are there
#   install-system.sh directories DIRECTORY ...      make directories that the user may write to
set -euo pipefail

programs() {
  local missing=() wanted
  for wanted in "$@"; do
    case $wanted in
      # Spark's start scripts call ps.
      java)
        command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
        command -v ps >/dev/null || missing+=(procps)
        ;;
      openssl) command -v openssl >/dev/null || missing+=(openssl) ;;
      *) echo "install-system.sh does not know $wanted" >&2 && exit 64 ;;
    esac
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  # Where manual pages are left out, as in slim images, Java's package still wants their directory.
  mkdir -p /usr/share/man/man1
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  apt-get clean
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
}

case ${1:?user, programs or directories?} in
  user)
    groupadd --gid "${2:?which id?}" s3commit
    useradd --uid "$2" --gid "$2" --create-home --shell /usr/sbin/nologin s3commit
    ;;
  programs) shift && programs "$@" ;;
  directories) shift && install -d -o s3commit -g s3commit "$@" ;;
  *) echo "install-system.sh does not know $1" >&2 && exit 64 ;;
esac
