#!/bin/sh
# kcat is one of the clients that the tests use. It comes from the system's packages, where we may install them;
# without it those tests are skipped and everything else works.
set -u
command -v kcat >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing kcat from the system's packages"
    { apt-get install -qq -y kcat || { apt-get update -qq && apt-get install -qq -y kcat; }; } >/dev/null 2>&1 && exit 0
fi
echo "note: kcat is not here, its tests will be skipped. To have it: sudo apt-get install kcat (or brew install kcat)"
