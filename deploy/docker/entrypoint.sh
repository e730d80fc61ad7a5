#!/bin/sh
# Entry point of the image. Runs `tokenloom serve` unless another command is named.
set -eu

case "${1:-}" in
    serve | generate | env) ;;
    *) set -- serve "$@" ;;
esac

# A container that starts as root continues as the owner of /data, which a host's folder decides.
# The only capability left is the one for ports below 1024. Without the capabilities that this
# needs (--cap-drop all), root has no rights to lose.
if [ "$(id -u)" = 0 ]; then
    drop="setpriv --reuid=$(stat -c %u /data) --regid=$(stat -c %g /data) --keep-groups \
        --no-new-privs --securebits=+noroot,+noroot_locked \
        --inh-caps=+net_bind_service --ambient-caps=+net_bind_service"
    if $drop true 2>/dev/null; then
        exec $drop tokenloom "$@"
    fi
fi
exec tokenloom "$@"
