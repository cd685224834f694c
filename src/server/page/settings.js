/* SPDX-License-Identifier: Apache-2.0
   Settings: of the chat that is open, or of new chats if none is. The key, the theme. */

/* The number fields, with their names in a request. */
const NUMBERS = { temperature: "temperature", "max-tokens": "max_tokens", "top-p": "top_p",
                  "top-k": "top_k", "min-p": "min_p", repetition: "repetition_penalty",
                  seed: "seed" };
const WHOLE = ["max-tokens", "top-k", "seed"];
const SETTINGS = ["system", ...Object.keys(NUMBERS), "thinking", "schema", "extra"];

let defaults = load("defaults", {});
if (!isObject(defaults))
  defaults = {};
const settings = () => chat ? chat.settings : defaults;

function showSettings() {
  for (const id of SETTINGS)
    $(id).value = settings()[id] ?? "";
  $("whose").textContent = chat ? "of this chat" : "of new chats";
  $("as-default").hidden = !chat;
  for (const id of ["schema", "extra"])
    readJson(id);
}

/* The object in a field; undefined: it is empty; null: it is none, which the page says. */
function readJson(id) {
  const text = (settings()[id] ?? "").trim();
  let value = text ? null : undefined;
  try {
    if (text)
      value = JSON.parse(text);
  } catch { /* said below */ }
  if (value !== undefined && !isObject(value))
    value = null;
  $(id).setAttribute("aria-invalid", String(value === null));
  $(id + "-error").hidden = value !== null;
  return value;
}

for (const id of SETTINGS)
  $(id).addEventListener("input", () => {
    settings()[id] = $(id).value;
    if ($(id + "-error"))
      readJson(id);
  });
for (const id of SETTINGS)
  $(id).addEventListener("change", () => {
    if (chat)
      keep(chat);
    else
      store("defaults", defaults);
  });
$("as-default").addEventListener("click", () => {
  defaults = { ...chat.settings };
  store("defaults", defaults);
  notice("New chats begin with these settings.");
});

/* What the settings add to a request; null: one of them is wrong. */
function sampling(s) {
  const schema = readJson("schema"), extra = readJson("extra"), body = {};
  if (schema === null || extra === null)
    return null;
  for (const [id, name] of Object.entries(NUMBERS))
    if (isText(s[id]) && s[id] !== "")
      body[name] = WHOLE.includes(id) ? Math.trunc(Number(s[id])) : Number(s[id]);
  if (s.thinking)
    body.chat_template_kwargs = { enable_thinking: s.thinking === "on" };
  if (schema)
    body.response_format = { type: "json_schema",
                             json_schema: { name: "answer", strict: true, schema } };
  return { ...body, ...extra };
}

try {
  $("key").value = sessionStorage.getItem("kvasir.key") || "";
} catch { /* not allowed */ }
$("key").addEventListener("input", () => {
  try {
    sessionStorage.setItem("kvasir.key", $("key").value);
  } catch { /* not allowed */ }
});
function headers(more) {
  const key = $("key").value.trim();
  return key ? { ...more, Authorization: "Bearer " + key } : { ...more };
}

function showTheme() {
  document.documentElement.dataset.theme = $("theme").value;
}
$("theme").value = ["light", "dark"].includes(load("theme")) ? load("theme") : "auto";
$("theme").addEventListener("change", () => {
  store("theme", $("theme").value);
  showTheme();
});
showTheme();
