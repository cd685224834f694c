/* SPDX-License-Identifier: Apache-2.0
   A chat: {id, title, changed, settings, messages, leaf}. Messages form a tree, so that an answer
   or a question can have several versions. A message's id is its place in `messages`; its parent
   comes before it. What is shown is the path from the root to `leaf`. */

function newChat(title, settings) {
  return { id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), title, changed: 0,
           settings: { ...settings }, messages: [], leaf: null };
}

/* Adds a message below `parent` (an id; null: the root) and shows it. */
function addMessage(c, parent, m) {
  m.id = c.messages.length;
  m.parent = parent;
  c.messages.push(m);
  c.leaf = m.id;
  return m;
}

/* The messages from the first one to `leaf`. */
function path(c, leaf = c.leaf) {
  const found = [];
  for (let id = leaf; id !== null; id = c.messages[id].parent)
    found.push(c.messages[id]);
  return found.reverse();
}

const versions = (c, m) => c.messages.filter(x => x.parent === m.parent);

/* Shows a message, and below it what was said last. */
function showVersion(c, m) {
  for (let next = m; next; next = c.messages.findLast(x => x.parent === next.id))
    c.leaf = next.id;
}

/* ---- chats from files and from older versions of the page ----------------------------------- */

const isObject = x => typeof x === "object" && x !== null && !Array.isArray(x);

function readMessage(m, id, messages) {
  if (!isObject(m) || !isText(m.content) || !["user", "assistant"].includes(m.role))
    return null;
  const parent = m.parent === undefined ? (id ? id - 1 : null) : m.parent;
  if (parent !== null && !(Number.isInteger(parent) && parent >= 0 && parent < messages.length))
    return null;
  const out = { id, parent, role: m.role, content: m.content };
  for (const name of ["reasoning", "error"])
    if (isText(m[name]))
      out[name] = m[name];
  if (isObject(m.figures))
    out.figures = m.figures;
  if (Array.isArray(m.files))
    out.files = m.files.filter(f => isText(f?.name) && isText(f.text))
      .map(f => ({ name: f.name, text: f.text }));
  return out;
}

/* A chat from anything: null if it is none. */
function readChat(from) {
  if (!isObject(from) || !isText(from.title) || !Array.isArray(from.messages) ||
      !from.messages.length)
    return null;
  const c = newChat(from.title.slice(0, 200), {});
  for (const m of from.messages) {
    const read = readMessage(m, c.messages.length, c.messages);
    if (!read)
      return null;
    c.messages.push(read);
  }
  if (isText(from.id) && from.id)
    c.id = from.id;
  c.changed = number(from.changed);
  for (const [name, value] of Object.entries(isObject(from.settings) ? from.settings : {}))
    if (SETTINGS.includes(name) && isText(value))
      c.settings[name] = value;
  c.leaf = Number.isInteger(from.leaf) && from.leaf >= 0 && from.leaf < c.messages.length
    ? from.leaf : c.messages.length - 1;
  return c;
}
