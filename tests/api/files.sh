#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Files that are not what they should be: FIFOs, devices and looping links in place of every file
# that a command reads, a limit of file sizes, what a killed process left.
. "$(dirname "$0")/../support/api.bash"
tiny_model
run() { timeout 20 "$kvasir" "$@" >out 2>err </dev/null; } # a FIFO would be waited for

mkfifo fifo
copy() { rm -rf model && cp -rL "$tiny" model && chmod -R u+w model; }

# ---- FIFOs, devices and links in a model's folder ----
for name in config.json model.safetensors tokenizer.json tokenizer_config.json \
    generation_config.json chat_template.jinja; do
    copy
    [ -e model/tokenizer.json ] || echo '{"model":{"type":"BPE"}}' >model/tokenizer.json
    rm -f "model/$name" && mkfifo "model/$name"
    expect 1 "model/$name: is a pipe, not a file" info model
    rm "model/$name" && ln -s /dev/zero "model/$name"
    expect 1 "model/$name: is a device, not a file" info model
    rm "model/$name" && ln -s "$name" "model/$name"
    expect 1 "model/$name: Too many levels" info model
done

# ---- files that flags name ----
copy
g=(-m model --tokens 1,2 -n 1 -q)
for file in fifo /dev/zero /dev/null; do
    expect 1 "$file: is a" info $file
    expect 1 "$file: is a" generate -m model -f $file
    expect 1 "$file: is a" generate -m model -p x --chat-template $file
    expect 1 "$file: is a" generate "${g[@]}" --prompt-cache $file
    expect 1 "$file: is a" serve -m model --api-key-file $file
    expect 1 "$file: is a" serve -m model --config $file
    expect 1 "$file: is a" simulate --trace $file
    [ $file = fifo ] || expect 1 "$file: is a" batch -m model -i $file -o new
done

# ---- a limit of file sizes; modes; leftovers ----
ids=$(seq -s, 1 200)
cache=(cache-prompt -m model --tokens "$ids" -o pc.safetensors -q)
(ulimit -f 4 && timeout 20 "$kvasir" "${cache[@]}" >out 2>err)
[ $? = 1 ] || die "SIGXFSZ: not exit code 1"
grep -q 'File too large' err || die "SIGXFSZ: no message"
[ -z "$(ls | grep '^pc\.')" ] || die "SIGXFSZ: a file is left"
bash -c 'exit 0' &
dead=$!
wait $dead
touch "pc.safetensors.tmp-$dead-0" "pc.safetensors.tmp-$$-0"
(umask 022 && good "${cache[@]}") || exit 1
[ "$(stat -c %a pc.safetensors)" = 600 ] || die "prompt caches are not private"
[ -e "pc.safetensors.tmp-$dead-0" ] && die "the file of a dead process is left"
[ -e "pc.safetensors.tmp-$$-0" ] || die "the file of a living process was removed"
