/* SPDX-License-Identifier: Apache-2.0
   Elements, numbers, notices: what the other scripts share. */

const $ = id => document.getElementById(id);

/* An element: only properties and text, so that nothing that comes is ever markup. */
function make(tag, props = {}, ...children) {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...children);
  return e;
}

function button(text, label, onclick, className = "quiet") {
  const b = make("button", { type: "button", className, textContent: text, onclick });
  if (label) {
    b.setAttribute("aria-label", label);
    b.title = label;
  }
  return b;
}

const isNumber = x => typeof x === "number" && isFinite(x);
const number = x => isNumber(x) ? x : 0;
const isText = x => typeof x === "string";

function bytes(n) {
  if (!isNumber(n))
    return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  for (; n >= 1024 && u + 1 < units.length; u++)
    n /= 1024;
  return n.toFixed(u && n < 100 ? 1 : 0) + " " + units[u];
}
const count = x => isNumber(x) ? x.toLocaleString("en") : "–";
const rate = x => isNumber(x) ? x.toFixed(x < 100 ? 1 : 0) : "–";
const percent = x => x > 0 && x < 0.005 ? "under 1 %" : Math.round(100 * x) + " %";
const seconds = ms => ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(2) + " s";

/* A line at the bottom for ten seconds; undo, if given, is called by its button. */
let noticeTimer = 0;
function notice(text, undo) {
  const close = () => { $("notice").hidden = true; };
  $("notice").replaceChildren(text);
  if (undo)
    $("notice").append(button("Undo", "", () => {
      close();
      undo();
    }, ""));
  $("notice").append(button("✕", "Close", close));
  $("notice").hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(close, 10000);
}

async function copy(text, what) {
  let good = false;
  try {
    await navigator.clipboard.writeText(text);
    good = true;
  } catch { /* not allowed, or plain HTTP from another machine, where only the old way works */
    const field = make("textarea", { value: text, className: "sr" });
    document.body.append(field);
    field.select();
    good = document.execCommand("copy");
    field.remove();
  }
  notice(good ? what + " copied." : "The browser does not allow to copy.");
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
