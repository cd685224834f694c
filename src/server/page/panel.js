/* SPDX-License-Identifier: Apache-2.0
   The server's status, each second: speed, cache, tiers; the last five minutes as plots. */

const HISTORY = 300; /* seconds */
const HITS = { __proto__: null, exact: "the whole prompt",
               prefix: "its beginning, all that was stored",
               supersequence: "inside a longer text", common_prefix: "the part in common",
               miss: "nothing" };

function rows(id, pairs) {
  $(id).replaceChildren(...pairs.flatMap(([name, value, color]) => {
    const dt = make("dt", {}, name);
    if (color) {
      const mark = make("i");
      mark.style.background = color;
      dt.prepend(mark);
    }
    return [dt, make("dd", {}, value)];
  }));
}

/* ---- plots ---------------------------------------------------------------------------------- */

const histories = {};

/* Adds a value to the plot `id`; text(value) says what its top is. */
function plot(id, value, text) {
  const history = histories[id] ??= [];
  history.push(number(value));
  if (history.length > HISTORY)
    history.shift();
  const top = Math.max(...history), from = HISTORY - history.length;
  const points = history.map((y, i) => from + i + "," + (top ? 30 - 28 * y / top : 30).toFixed(1));
  const [area, line] = $(id).querySelectorAll("polygon, polyline");
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", from + ",31 " + points.join(" ") + " " + (HISTORY - 1) + ",31");
  $(id).querySelector("title").textContent =
    $(id).dataset.name + ", the last five minutes: at most " + text(top);
  $(id + "-top").textContent = "at most " + text(top);
}

/* ---- the cache ------------------------------------------------------------------------------ */

const isPages = f => f.format !== "tables";

function formatRows(cache) {
  const all = Array.isArray(cache.by_format) ? cache.by_format.filter(isObject) : [];
  const kinds = { __proto__: null, live: "in use", stored: "kept for later" };
  return all.filter(f => isPages(f) && number(f.bytes) > 0)
    .map((f, i) => [String(f.format ?? "?") + (f.kind in kinds ? ", " + kinds[f.kind] : ""),
                    number(f.bytes), "var(--f" + i % 5 + ")"]);
}

function showBudget(cache) {
  const used = number(cache.used_bytes), budget = number(cache.budget_bytes);
  const parts = formatRows(cache);
  const cached = parts.reduce((sum, p) => sum + p[1], 0);
  if (used > cached)
    parts.push(["buffers and tables", used - cached, "var(--soft)"]);
  $("used").textContent = isNumber(cache.used_bytes)
    ? bytes(cached) + " cached · " + bytes(Math.max(0, used - cached)) + " buffers" : "–";
  $("budget").textContent = !budget ? "" : !isNumber(cache.used_bytes) ? "budget: " + bytes(budget)
    : percent(used / budget) + " of the budget of " + bytes(budget);
  $("bar").replaceChildren(...parts.map(([name, n, color]) => {
    const part = make("i", { title: name + ": " + bytes(n) });
    part.style.width = 100 * n / (budget || used || 1) + "%";
    part.style.background = color;
    return part;
  }));
  rows("formats", [...parts.map(([name, n, color]) => [name, bytes(n), color]),
                   ["Most so far", bytes(cache.peak_bytes)]]);
  plot("cache-plot", cached, bytes);
}

function showHits(s, cache) {
  const hits = Object.entries(isObject(cache.hits) ? cache.hits : {})
    .filter(([, n]) => isNumber(n));
  const all = hits.reduce((sum, [, n]) => sum + n, 0);
  $("reuse").textContent = !all ? "No request so far."
    : percent(number(cache.hit_rate)) + " of requests reused the cache";
  const prompt = number(s.total_prompt_tokens);
  $("reuse-tokens").textContent = !prompt ? ""
    : percent(number(s.total_cached_tokens) / prompt) + " of prompt tokens were not computed again";
  rows("hits", hits.map(([kind, n]) => [HITS[kind] ?? kind.replaceAll("_", " "), count(n)]));
}

function showTiers(tiers) {
  const stores = Array.isArray(tiers?.stores) ? tiers.stores.filter(isObject) : [];
  $("tiers").hidden = !stores.length;
  rows("stores", stores.flatMap(t => {
    const limit = number(t.limit_bytes), name = String(t.tier ?? "?");
    return [[name, t.down ? "down" : bytes(t.bytes) + (limit ? " of " + bytes(limit) : "")],
            [name + ": pages found", count(t.hit_pages)]];
  }).concat(stores.length ? [["Prompt tokens from there", count(tiers.hit_tokens)]] : []));
}

/* ---- all of it ------------------------------------------------------------------------------ */

function duration(s) {
  return s < 3600 ? Math.floor(s / 60) + " min" : s < 172800 ? (s / 3600).toFixed(1) + " h"
    : Math.floor(s / 86400) + " days";
}

function showStatus(s) {
  const cache = isObject(s.cache) ? s.cache : {};
  /* The stream at hand is known better than the server's average. */
  const own = running && running.first && running.pieces > 1
    ? (running.pieces - 1) * 1000 / (performance.now() - running.first) : s.generation_tps;
  $("tps").textContent = rate(own);
  plot("speed-plot", own, y => rate(y) + " tokens/s");
  $("prompt-tps").textContent = isNumber(s.prompt_tps) ? rate(s.prompt_tps) + " tokens/s" : "–";
  $("running").textContent = (s.num_running ?? "–") + " / " + (s.num_waiting ?? "–");
  showBudget(cache);
  showHits(s, cache);
  showTiers(s.tiers);
  rows("server", [
    ["Version", String(s.version ?? "–")], ["Up", duration(number(s.uptime_s))],
    ["Context", contextLimit ? count(contextLimit) + " tokens" : "–"],
    ["Format of the cache", String(cache.format ?? "–")],
    ["Prompt tokens", count(s.total_prompt_tokens)],
    ["of them from the cache", count(s.total_cached_tokens)],
    ["Tokens written", count(s.total_completion_tokens)]]);
}

function setState(kind, text) {
  if ($("state").textContent !== text)
    $("state").textContent = text;
  $("state").className = kind;
}

async function get(path) {
  const response = await fetch(path, { headers: headers(), signal: AbortSignal.timeout(5000) });
  if (!response.ok)
    throw new Error(response.status === 401 ? "API key needed" : await errorText(response));
  return response.json();
}

/* The models to choose from, and the context of the chosen one. */
let models = [];
function showModels(list) {
  const now = (Array.isArray(list?.data) ? list.data : []).filter(m => isText(m?.id));
  const was = $("model").value || load("model", ""), names = x => x.map(m => m.id).join("\n");
  if (names(now) !== names(models)) /* else the list may be open */
    $("model").replaceChildren(...now.map(m => make("option", { value: m.id }, m.id)));
  models = now;
  if (models.some(m => m.id === was))
    $("model").value = was;
  $("model").disabled = models.length < 2;
  showLimit();
}
function showLimit() {
  contextLimit = number(models.find(m => m.id === $("model").value)?.max_model_len);
  showContext();
}
$("model").addEventListener("change", () => {
  store("model", $("model").value);
  showLimit();
});

let connected = false;
async function poll() {
  if (!document.hidden)
    try {
      const status = await get("v1/status" + location.search);
      if (!connected || models.some(m => m.id === $("model").value && !m.max_model_len))
        showModels(await get("v1/models"));
      connected = true;
      showStatus(status);
      setState("good", "connected");
    } catch (e) {
      connected = false;
      const silent = e instanceof TypeError || e.name === "TimeoutError";
      setState("bad", silent ? "no answer" : e.message);
    }
  setTimeout(poll, 1000);
}
