#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# dist/grafana.json and dist/kvasir-alerts.yml: each figure in them is one that a server exports;
# promtool and Prometheus itself, where they are installed, take the rules.
. "$(dirname "$0")/../support/api.bash"
tiny_model
unset "${!KVASIR_@}"
mkdir tier
start_server -m "$tiny" --cache-memory-mb 64 --cache-dir tier
curl -sf "$url/v1/completions" -d '{"prompt": [1, 2, 3], "max_tokens": 2}' >/dev/null ||
    die "a request"
curl -s "$url/nowhere" >/dev/null
curl -sf "$url/metrics" >metrics || die "/metrics"
end_server TERM 0
python3 - "$SOURCE_DIR" <<'PY' || die "figures that no server exports"
import json, re, sys
root = sys.argv[1]
have = set(re.findall(r"^# TYPE (\S+)", open("metrics").read(), re.M))
documented = open(root + "/docs/metrics.md").read()
board = json.load(open(root + "/dist/grafana.json"))
texts = [t["expr"] for p in board["panels"] for t in p["targets"]]
texts += re.findall(r"expr: (.*(?:\n          .*)*)", open(root + "/dist/kvasir-alerts.yml").read())
names = set(re.findall(r"\b((?:vllm:|kvasir_|process_)[a-z_]+)", " ".join(texts)))
assert len(texts) > 30 and len(names) > 25, (len(texts), len(names))
for name in sorted(names):
    base = re.sub(r"_bucket$", "", name)
    if base not in have and f"`{base}" not in documented:
        sys.exit(f"{name} is in neither /metrics nor docs/metrics.md")
ids = [p["id"] for p in board["panels"]]
assert len(ids) == len(set(ids))
for p in board["panels"]:
    g = p["gridPos"]
    assert g["x"] + g["w"] <= 24, p["title"]
PY
command -v promtool >/dev/null || exit 0
promtool check rules "$SOURCE_DIR/dist/kvasir-alerts.yml" >out 2>err || die "promtool"
promtool check metrics <metrics >out 2>err
! grep -qi 'error while linting' err || die "promtool on /metrics"
command -v prometheus >/dev/null || exit 0
port=$(python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >prometheus.yml <<YML
rule_files: [$SOURCE_DIR/dist/kvasir-alerts.yml]
scrape_configs: [{job_name: kvasir, static_configs: [{targets: ["127.0.0.1:1"]}]}]
YML
timeout 60 prometheus --config.file prometheus.yml --storage.tsdb.path data \
    --web.listen-address "127.0.0.1:$port" >prometheus.log 2>&1 &
servers+=($!)
for _ in {1..100}; do
    curl -sf "http://127.0.0.1:$port/api/v1/rules" >rules && break
    sleep 0.2
done
python3 -c 'import json
rules = json.load(open("rules"))["data"]["groups"][0]["rules"]
assert len(rules) >= 10 and all(r["health"] in ("ok", "unknown") for r in rules), rules' ||
    die "Prometheus does not take the rules: $(tail -3 prometheus.log)"
