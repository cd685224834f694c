/* SPDX-License-Identifier: Apache-2.0
   Messages as elements, and what their buttons do. */

const log = $("log");
const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
const toEnd = () => { log.scrollTop = log.scrollHeight; };

const ENDS = { __proto__: null, length: "stopped at max tokens", stopped: "stopped",
               cancelled: "stopped" };

function figures(f) {
  if (!isObject(f))
    return "";
  const out = [];
  if (isNumber(f.tokens))
    out.push(f.tokens + " tokens");
  if (isNumber(f.tps))
    out.push(rate(f.tps) + " tokens/s");
  if (isNumber(f.first))
    out.push(seconds(f.first) + " to the first");
  if (isNumber(f.prompt))
    out.push(number(f.cached) + " of " + f.prompt + " prompt tokens cached");
  if (f.finish in ENDS)
    out.push(ENDS[f.finish]);
  return out.join(" · ");
}

/* ‹ 2/3 ›: the versions of a message. */
function versionButtons(c, m) {
  const all = versions(c, m), at = all.indexOf(m);
  if (all.length < 2)
    return [];
  const to = (text, label, i) => {
    const b = button(text, label, () => {
      showVersion(c, all[i]);
      keep(c);
      showChat();
    });
    b.disabled = !all[i];
    return b;
  };
  return [make("span", { className: "versions" }, to("‹", "Previous version", at - 1),
               at + 1 + "/" + all.length, to("›", "Next version", at + 1))];
}

/* Views of messages, so that a long chat is made of elements once. */
const views = new WeakMap();

/* Turns the text of a message into a field. done(text) gets what is sent. */
function edit(view, m, what, done) {
  views.delete(m);
  const field = make("textarea", { value: m.content, className: "edit" });
  field.setAttribute("aria-label", what);
  const form = make("form", { className: "editing" }, field,
                    make("button", { type: "submit", className: "main", textContent: what }),
                    button("Cancel", "", () => showChat(), ""));
  form.addEventListener("submit", e => {
    e.preventDefault();
    if (field.value.trim() !== "" && !running)
      done(field.value);
  });
  view.replaceChildren(form);
  view.classList.add("edited");
  field.style.height = Math.min(field.scrollHeight + 4, innerHeight / 2) + "px";
  field.focus();
}

function userView(c, m) {
  const body = make("div", { className: "body plain" }, m.content);
  const files = (m.files || []).map(f =>
    make("details", { className: "file" },
         make("summary", {}, f.name + " · " + bytes(f.text.length)),
         make("pre", { tabIndex: 0 }, f.text.slice(0, LONG_TEXT))));
  const e = make("article", { className: "user" }, ...files, body);
  e.setAttribute("aria-label", "You");
  const foot = make("div", { className: "foot" });
  e.append(foot);
  return {
    e,
    update() {
      foot.replaceChildren(...versionButtons(c, m),
        button("Copy", "Copy message", () => copy(m.content, "Message")),
        button("Edit", "Edit and send again", () => edit(e, m, "Send", text => {
          addMessage(c, m.parent, { role: "user", content: text, files: m.files });
          answer(c);
        })));
    }
  };
}

function answerButtons(c, m, e) {
  const out = [...versionButtons(c, m),
    button("Copy", "Copy answer", () => copy(m.content, "Answer")),
    button("Edit", "Edit answer", () => edit(e, m, "Keep as a new version", text => {
      addMessage(c, m.parent, { role: "assistant", content: text });
      keep(c);
      showChat();
    })),
    button("Regenerate", "", () => regenerate(c, m))];
  if (m.id === c.leaf && m.content && (m.error || m.figures?.finish in ENDS))
    out.push(button("Continue", "Continue this answer", () => answer(c, m)));
  return out;
}

/* Formats old answers when they come near what is seen; until then they are plain text. */
const nearby = new IntersectionObserver(seen => {
  for (const { target, isIntersecting } of seen)
    if (isIntersecting) {
      nearby.unobserve(target);
      target.format();
    }
}, { root: log, rootMargin: "1500px" });

/* The element of a message. update(live, old): `live` while its answer comes, `old` if it is far up
   and need not be formatted yet. */
function view(c, m) {
  if (m.role === "user")
    return userView(c, m);
  const body = make("div", { className: "body" }), thought = make("div", { className: "body" });
  const summary = make("summary", {}, "Thoughts");
  const details = make("details", { className: "thought", hidden: true }, summary, thought);
  const error = make("p", { className: "error", hidden: true });
  error.setAttribute("role", "alert");
  const foot = make("div", { className: "foot" });
  const e = make("article", { className: "answer" }, details, body, error, foot);
  e.setAttribute("aria-label", "Answer");
  let open = false; /* folded unless the reader unfolds it */
  details.addEventListener("toggle", () => {
    if (details.open && !open)
      fill(thought, m.reasoning);
    open = details.open;
  });
  e.format = () => {
    body.classList.remove("plain");
    fill(body, m.content);
  };
  return {
    e,
    update(live, old) {
      details.hidden = !m.reasoning;
      summary.textContent = live && !m.content ? "Thinking …" : "Thoughts";
      if (m.reasoning && details.open)
        fill(thought, m.reasoning);
      if (!old)
        e.format();
      else if (body.text === undefined) {
        body.textContent = m.content;
        body.classList.add("plain");
        nearby.observe(e);
      }
      body.classList.toggle("wait", Boolean(live));
      e.setAttribute("aria-busy", String(Boolean(live)));
      error.hidden = !m.error;
      error.textContent = m.error || "";
      foot.hidden = Boolean(live);
      if (!live)
        foot.replaceChildren(make("span", { className: "figures" }, figures(m.figures)),
                             make("span", { className: "buttons" }, ...answerButtons(c, m, e)));
    }
  };
}

function showChat() {
  const shown = chat ? path(chat) : [];
  log.replaceChildren(...shown.map((m, i) => {
    const live = running?.message === m, v = live ? running.view : views.get(m) ?? view(chat, m);
    views.set(m, v);
    v.update(live, i < shown.length - 10);
    return v.e;
  }));
  if (!shown.length)
    log.append(make("div", { id: "hello" }, make("b", {}, "What shall we talk about?"),
                    "Turns share the cache of what was said before."));
  document.title = chat?.title ? chat.title + " – Kvasir" : "Kvasir";
  showContext();
  toEnd();
}

/* Answers the same question once more, as another version. */
function regenerate(c, m) {
  if (running || m.parent === null)
    return;
  c.leaf = m.parent;
  answer(c);
}
