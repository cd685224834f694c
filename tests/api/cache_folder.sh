#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir cache` on folders without a record: empty, missing, in use, and with files that only look
# like a server's. What it says of records: unit.tier_folder.
. "$(dirname "$0")/../support/api.bash"

c() { expect "$1" "^kvasir cache: $2" cache "${@:3}"; }
c 2 'ACTION: missing'
c 2 'DIR: missing' ls
c 2 'one DIR only' ls a b
c 2 '"frob" is not ls, stat, verify, gc or clear' frob a
c 2 '--cache-disk-gb: only allowed with gc' ls a --cache-disk-gb 1
c 2 '--cache-disk-gb: -1 is out of range' gc a --cache-disk-gb -1
for action in ls stat verify gc clear; do
    c 1 'nowhere: No such file' $action nowhere
    : >file
    c 1 'file: Not a directory' $action file
done

mkdir folder
good cache ls folder
[ -s out ] && die "an empty folder has a list"
good cache stat folder
grep -q '^0 files, 0 B$' out || die "stat of an empty folder"
good cache verify folder --json
[ "$(json damaged)" = 0 ] || die "damage in an empty folder"
good cache gc folder
good cache clear folder --json
[ "$(json bytes)" = 0 ] || die "clear --json"
c 2 'the limit of folder is .* at least' gc folder --cache-disk-gb 0.001

# Not a record in it: damage that is named, and no error of anything but verify.
head -c 100000 /dev/urandom >folder/00000007.kvs
: >folder/00000008.kvs # just begun
echo mine >folder/notes
for action in ls stat; do
    good cache $action folder
done
run cache verify folder
[ $? = 1 ] || die "verify finds no damage"
grep -qx '00000007.kvs at 0: 4096 bytes damaged' out || die "the place of the damage"
grep -q '^kvasir cache: folder: damaged in' err || die "verify does not say so"

(
    flock 9
    echo 4711 >&9
    exec sleep 60
) 9>>folder/lock &
holder=$!
for _ in $(seq 100); do
    [ -s folder/lock ] && break
    sleep 0.05
done
good cache stat folder
for action in gc clear; do
    c 1 'folder is in use by process [0-9]*: stop it' $action folder
done
kill $holder
wait $holder 2>/dev/null

good cache clear folder
[ "$(ls folder)" = "$(printf 'lock\nnotes')" ] || die "clear: $(ls folder)"
exit 0
