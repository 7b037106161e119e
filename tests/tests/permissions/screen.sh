# A screen as Claude Code's: it calls its hooks, and shows its dialog while the hook that asks runs.
for word in "$@"; do
    case $word in --settings=*) settings=${word#--settings=} ;; esac
done
# Text of the hook for an event.
hook() {
    printf '%s' "$settings" | sed 's/.*"'"$1"'":\[{"hooks":\[{//; s/^"type":"command",//; s/^"command":"//
        s/","timeout".*//; s/\\"/"/g; s/\\\\/\\/g'
}
tell() {
    printf '{"session_id":"c-1","hook_event_name":"%s",%s}\n' "$1" "$2" | sh -c "$(hook "$1")"
}
stty -echo
echo "screen of $HOOK_SCREEN"
calls=0
while read -r word rest; do
    case $word in
    run)
        calls=$((calls + 1))
        tool='"tool_name":"Bash","tool_input":{"command":"'$rest'"}'
        tell UserPromptSubmit '"prompt":"run"'
        tell PreToolUse "$tool,\"tool_use_id\":\"t-$calls\""
        printf '{"session_id":"c-1","hook_event_name":"PermissionRequest",%s}\n' "$tool" > report
        (
            setsid sh -c "$(hook PermissionRequest)" < report > answer &
            echo $! > asked
            wait
            echo "the hook said <$(cat answer)>"
        ) &
        ;;
    # The dialog is answered: the hook goes on, as it does there.
    yes) tell PostToolUse "$tool,\"tool_use_id\":\"t-$calls\",\"tool_response\":{\"stdout\":\"done\"}" ;;
    # The dialog is left: the hook is ended.
    escape) kill -s TERM -- "-$(cat asked)" ;;
    blocked | working) printf '\033]7501;state=%s\033\\' "$word" ;;
    esac
done
