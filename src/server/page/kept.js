/* SPDX-License-Identifier: Apache-2.0
   What this browser keeps: chats in IndexedDB, small things in localStorage, the key in this
   tab. */

function load(name, or) {
  try {
    return JSON.parse(localStorage.getItem("kvasir." + name)) ?? or;
  } catch {
    return or;
  }
}
function store(name, value) {
  try {
    localStorage.setItem("kvasir." + name, JSON.stringify(value));
  } catch { /* full or not allowed: it stays in memory */ }
}

const database = new Promise((good, bad) => {
  const opening = indexedDB.open("kvasir", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("chats", { keyPath: "id" });
  opening.onsuccess = () => good(opening.result);
  opening.onerror = () => bad(opening.error);
});

/* The result of the request that use(objectStore) makes, once it is on disk. */
async function inStore(mode, use) {
  const transaction = (await database).transaction("chats", mode);
  const request = use(transaction.objectStore("chats"));
  return new Promise((good, bad) => {
    transaction.oncomplete = () => good(request.result);
    transaction.onabort = transaction.onerror = () => bad(transaction.error);
  });
}

/* Other tabs of this browser show the same chats. */
const tabs = new BroadcastChannel("kvasir");

async function changeKept(id, use) {
  try {
    await inStore("readwrite", use);
    tabs.postMessage(id);
  } catch (e) {
    notice("This browser does not keep the chat: " + (e?.message || e));
  }
}
function keep(c, changed = Date.now()) {
  c.changed = changed;
  return changeKept(c.id, kept => kept.put(c));
}
const forget = c => changeKept(c.id, kept => kept.delete(c.id));
