#!/bin/sh
# Runs the script beside it with the Node.js that runs its parent, codex-acp.
exec "/proc/$PPID/exe" "$0.cjs" "$@"
