#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The page of the server (src/server/page/) in headless Chromium: page.py. First served by a fake
# server, which gives odd answers, then by `kvasir serve`: with a key and a model with scripted
# answers, then with the demo model if there is one. axe-core comes from `tools/fetch-model.sh axe`.
. "$(dirname "$0")/../support/api.bash"
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY "${!KVASIR_@}"
axe=$MODELS_DIR/axe.min.js
[ -f "$axe" ] || { echo "page: not checked with axe-core: no $axe" && axe=; }
page() { timeout "$(limit 250)" python3 "$SOURCE_DIR/tests/api/page.py" "$@"; }
page --page "$(dirname "$kvasir")/page.html" --axe "$axe"
code=$?
[ "$code" = 77 ] && exit 77
[ "$code" = 0 ] || die "a fake server"

cat >scripts <<'EOT'
{"chat_template":
 "{# <think></think> #}{% for m in messages %}{{ m.content }}{% endfor %}<|script|>",
 "scripts": {"script":
  "<think>\nLet me see.\n</think>\n\nA page:\n```c\nint x = '<b>&';\n```\nDone."}}
EOT
python3 "$SOURCE_DIR/tests/support/scripted_model.py" scripted scripts || die "scripted_model.py"
start_server -m scripted --ctx 1024 --cache-memory-mb 64 --api-key 'a-key'
page --url "$url" --key a-key --scripted || die "kvasir serve"
end_server TERM 0
grep -q 'route=page' "$log" && die "the page was refused"

demo=$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$demo" ] || exit 0
start_server -m "$demo" --ctx 4096 --cache-memory-mb 256
page --url "$url" || die "kvasir serve with the demo model"
end_server TERM 0
