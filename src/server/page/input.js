/* SPDX-License-Identifier: Apache-2.0
   The field for messages, text files that go with them, keys and drawers. */

const MOST_FILE = 4 << 20;
let files = [];

function send() {
  const text = $("input").value;
  if (running || (text.trim() === "" && !files.length))
    return;
  if (!chat) {
    chat = newChat((text.trim() || files[0].name).slice(0, 60), defaults);
    chats.unshift(chat);
    showSettings();
  }
  addMessage(chat, chat.leaf, { role: "user", content: text, files });
  $("input").value = "";
  files = [];
  showFiles();
  grow();
  answer(chat);
  showList();
}

function grow() {
  const e = $("input");
  e.style.height = "auto";
  e.style.height = e.scrollHeight + 2 + "px";
}

function showFiles() {
  $("files").hidden = !files.length;
  $("files").replaceChildren(...files.map(f => make("li", {}, f.name + " · " + bytes(f.text.length),
    button("✕", "Remove " + f.name, () => {
      files = files.filter(x => x !== f);
      showFiles();
    }))));
}

async function addFiles(list) {
  for (const file of list) {
    if (/\.json$/i.test(file.name) && await importFile(file, true))
      continue;
    if (file.size > MOST_FILE) {
      notice(file.name + " is larger than " + bytes(MOST_FILE) + ".");
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0"))
        throw new Error();
      files.push({ name: file.name, text });
    } catch {
      notice(file.name + " is no text in UTF-8; only text can be sent.");
    }
  }
  showFiles();
  $("input").focus();
}

$("input").addEventListener("input", grow);
const touch = matchMedia("(hover: none) and (pointer: coarse)"); /* no Shift+Enter there */
$("input").addEventListener("keydown", e => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing && !touch.matches) {
    e.preventDefault();
    send();
  }
});
$("form").addEventListener("submit", e => {
  e.preventDefault();
  send();
});
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  addFiles([...$("file").files]);
  $("file").value = "";
});
$("input").addEventListener("paste", e => {
  if (e.clipboardData.files.length) {
    e.preventDefault();
    addFiles([...e.clipboardData.files]);
  }
});
for (const type of ["dragover", "dragleave", "drop"])
  document.addEventListener(type, e => {
    if (!e.dataTransfer?.types.includes("Files"))
      return;
    e.preventDefault();
    document.body.classList.toggle("dropping", type === "dragover");
    if (type === "drop")
      addFiles([...e.dataTransfer.files]);
  });
$("stop").addEventListener("click", () => running?.abort.abort());
document.addEventListener("keydown", e => {
  if (e.key === "Escape") {
    running?.abort.abort();
    toggle("chats", false);
    toggle("side", false);
  } else if ((e.ctrlKey || e.metaKey) && e.key === "k") {
    e.preventDefault();
    toggle("chats", true);
    $("search").focus();
  } else if ((e.ctrlKey || e.metaKey) && e.shiftKey && e.key.toLowerCase() === "o") {
    e.preventDefault();
    pick(null);
  }
});

function toggle(id, open) {
  const on = open ?? !$(id).classList.contains("open");
  $(id).classList.toggle("open", on);
  $("show-" + id).setAttribute("aria-expanded", String(on));
}
for (const [id, other] of [["chats", "side"], ["side", "chats"]])
  $("show-" + id).addEventListener("click", () => {
    toggle(other, false);
    toggle(id);
  });
document.querySelector("main").addEventListener("click", () => {
  toggle("chats", false);
  toggle("side", false);
});
