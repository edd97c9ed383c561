#!/bin/sh
# Installs what pip cannot: kcat, one of the clients that the tests use, a Java runtime for Spark, and the browser of the
# console's tests. They come from the system's packages where we may install them; without them, what needs them is
# skipped and says so, all else works.
set -u

java_is_recent() {
    command -v java >/dev/null 2>&1 || return 1
    major=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 17 ]
}

install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "installing $1 from the system's packages"
    { apt-get install -qq -y "$1" || { apt-get update -qq && apt-get install -qq -y "$1"; }; } >/dev/null 2>&1
}

install_known() {
    [ "$(id -u)" = 0 ] && apt-cache show "$1" >/dev/null 2>&1 || return 1
    echo "installing $1 from the system's packages"
    apt-get install -qq -y -o Acquire::Retries=0 -o Acquire::http::Timeout=15 "$1" >/dev/null 2>&1
}

command -v kcat >/dev/null 2>&1 || install kcat ||
    echo "note: kcat is not here, its tests will be skipped. To have it: sudo apt-get install kcat (or brew install kcat)"

# The build without windows is enough for tests, and takes a quarter of the CPU. A machine that has the other and cannot
# get this one at once keeps what it has.
command -v chromium-headless-shell >/dev/null 2>&1 || install_known chromium-headless-shell ||
    command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || install chromium ||
    echo "note: chromium is not here, the console's tests will be skipped. To have it: sudo apt-get install chromium"

java_is_recent || [ -n "${JAVA_HOME:-}" ] || install openjdk-17-jre-headless || install default-jre-headless ||
    echo "note: there is no Java 17 or later, so Spark's part is skipped. To have it: sudo apt-get install" \
        "openjdk-17-jre-headless (or brew install openjdk@17), or point JAVA_HOME at one"
exit 0
