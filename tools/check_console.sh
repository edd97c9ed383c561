#!/bin/sh
# Checks the types of the console's scripts (JSDoc) with TypeScript's compiler. It is installed once, into .cache, where
# Node and a registry can be reached; the console itself needs neither.
set -u

TYPESCRIPT=5.9.3
FOLDER=.cache/typescript-$TYPESCRIPT
COMPILER=$FOLDER/node_modules/typescript/bin/tsc

note() {
    echo "note: the console's scripts were not checked: $1"
    exit 0
}

command -v node >/dev/null 2>&1 || note "there is no Node (apt-get install nodejs npm)"
if [ ! -f "$COMPILER" ]; then
    command -v npm >/dev/null 2>&1 || note "there is no npm to install TypeScript with"
    npm install --silent --no-audit --no-fund --prefix "$FOLDER" "typescript@$TYPESCRIPT" >/dev/null 2>&1 ||
        note "TypeScript $TYPESCRIPT could not be installed"
fi
node "$COMPILER" -p tools/tsconfig.json
