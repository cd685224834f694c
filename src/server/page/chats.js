/* SPDX-License-Identifier: Apache-2.0
   The list of chats: search, rename, delete and undo, export and import. */

let chats = [], chat = null;

const inChat = (c, text) => (c.title + "\n" + c.messages.map(m => m.content).join("\n"))
  .toLowerCase().includes(text);

function showList() {
  const wanted = $("search").value.trim().toLowerCase();
  const found = chats.filter(c => !wanted || inChat(c, wanted));
  $("list").replaceChildren(...found.map(listItem));
  $("none").hidden = found.length > 0 || !chats.length;
  $("export").hidden = !chats.length;
}

function listItem(c) {
  const open = make("button", { type: "button", className: "open", textContent: c.title || "…",
                                title: c.title, onclick: () => pick(c) });
  if (c === chat)
    open.setAttribute("aria-current", "true");
  const li = make("li", { className: c === chat ? "on" : "" }, open,
    button("✎", "Rename " + c.title, () => rename(c, li)),
    button("⤓", "Export " + c.title, () => exportChats([c], c.title)),
    button("✕", "Delete " + c.title, () => remove(c)));
  return li;
}

function rename(c, li) {
  const field = make("input", { value: c.title, maxLength: 200 });
  field.setAttribute("aria-label", "New title");
  let done = false;
  const finish = title => {
    if (done)
      return;
    done = true;
    if (title.trim() && title !== c.title) {
      c.title = title.trim();
      keep(c);
    }
    showList();
  };
  field.addEventListener("keydown", e => {
    if (e.key === "Enter" || e.key === "Escape") {
      e.stopPropagation();
      finish(e.key === "Enter" ? field.value : "");
    }
  });
  field.addEventListener("blur", () => finish(field.value));
  li.replaceChildren(field);
  field.select();
}

function pick(c) {
  chat = c;
  toggle("chats", false);
  showSettings();
  showList();
  showChat();
  $("input").focus();
}

function remove(c) {
  if (running?.chat === c)
    running.abort.abort();
  const at = chats.indexOf(c), shown = c === chat;
  chats = chats.filter(x => x !== c);
  forget(c);
  if (shown)
    pick(null);
  showList();
  notice("Deleted: " + (c.title || "…") + " ", () => {
    chats.splice(at, 0, c);
    keep(c);
    if (shown)
      pick(c);
    showList();
  });
}

/* ---- files ---------------------------------------------------------------------------------- */

function exportChats(list, title) {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "chat";
  download(name + ".json", "application/json",
           JSON.stringify({ kvasir_chats: 1, chats: list }, null, 1));
}

/* Takes the chats of a file; true: it had some. `maybe`: it need not be a file of chats. */
async function importFile(file, maybe) {
  let found = [];
  try {
    const from = JSON.parse(await file.text());
    const list = maybe && !from.kvasir_chats ? [] : from.chats || [from].flat();
    found = list.map(readChat).filter(Boolean);
  } catch { /* no JSON: none */ }
  for (const c of found) {
    const same = chats.find(x => x.id === c.id);
    if (same && same.changed === c.changed)
      continue;
    if (same)
      c.id = newChat("", {}).id;
    chats.unshift(c);
    await keep(c, c.changed);
  }
  if (found.length || !maybe)
    notice(found.length ? "Imported " + found.length + (found.length > 1 ? " chats." : " chat.")
                        : file.name + " has no chats that this page knows.");
  chats.sort((a, b) => b.changed - a.changed);
  showList();
  return found.length > 0;
}

$("new").addEventListener("click", () => pick(null));
$("search").addEventListener("input", showList);
$("export").addEventListener("click", () => exportChats(chats, "kvasir-chats"));
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", async () => {
  for (const file of [...$("import-file").files])
    await importFile(file, false);
  $("import-file").value = "";
});

/* Reads all chats of this browser; the one that is open stays so. */
async function readChats() {
  let kept = [];
  try {
    kept = await inStore("readonly", s => s.getAll());
  } catch (e) {
    notice("This browser keeps no chats: " + (e?.message || e));
  }
  const old = load("chats", null); /* of the page before it had a database */
  if (Array.isArray(old)) {
    localStorage.removeItem("kvasir.chats");
    const found = old.map(readChat).filter(Boolean);
    kept.push(...found);
    found.forEach(c => keep(c));
  }
  chats = kept.map(readChat).filter(Boolean).sort((a, b) => b.changed - a.changed);
  if (running) /* what comes is newer than what is kept */
    chats = [running.chat, ...chats.filter(c => c.id !== running.chat.id)];
  chat = chat && (chats.find(c => c.id === chat.id) ?? null);
  showSettings();
  showList();
  showChat();
}

/* Another tab changed or deleted a chat. */
tabs.addEventListener("message", async ({ data: id }) => {
  const c = readChat(await inStore("readonly", s => s.get(id)));
  if (running?.chat.id === id) /* the newest of it is here */
    return;
  const shown = chat?.id === id;
  chats = chats.filter(x => x.id !== id);
  if (c)
    chats.unshift(c);
  if (shown) {
    chat = c;
    showSettings();
  }
  if (shown && !document.querySelector(".editing"))
    showChat();
  if (!document.querySelector("#list input"))
    showList();
});
