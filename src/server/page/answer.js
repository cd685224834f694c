/* SPDX-License-Identifier: Apache-2.0
   One answer at a time: the request, its stream, the context meter. */

/* The answer that comes: its chat, message, view, AbortController, times. */
let running = null;
let contextLimit = 0;

const fileText = f => f.name + ":\n```\n" + f.text.replace(/\n?$/, "\n") + "```\n\n";

/* The body of a request for what follows `leaf`; null: a setting is wrong. */
function request(c, leaf, continues) {
  const more = sampling(c.settings);
  if (!more)
    return null;
  const messages = path(c, leaf).filter(m => m.role === "user" || m.content)
    .map(m => ({ role: m.role, content: (m.files || []).map(fileText).join("") + m.content }));
  if (c.settings.system?.trim())
    messages.unshift({ role: "system", content: c.settings.system.trim() });
  const body = { messages, stream: true, stream_options: { include_usage: true }, ...more };
  if ($("model").value)
    body.model = $("model").value;
  if (continues)
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}

async function errorText(response) {
  let why = "";
  try {
    const body = await response.json();
    why = body.error?.message || body.error || body.detail || "";
  } catch { /* no JSON */ }
  if (!isText(why))
    why = JSON.stringify(why);
  return "HTTP " + response.status + (why ? ": " + why : "");
}

/* Calls take(object) for each event of a stream; true: it said that it ended. */
async function events(response, take) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let parts = [], ended = false; /* parts: of a line that has not ended */
  for (;;) {
    const { done, value } = await reader.read();
    if (done)
      return ended;
    const lines = decoder.decode(value, { stream: true }).split("\n");
    for (const line of lines.splice(0, lines.length - 1)) {
      const data = parts.join("") + line;
      parts = [];
      if (!data.startsWith("data:"))
        continue;
      if (data.slice(5).trim() === "[DONE]")
        ended = true;
      else
        take(JSON.parse(data.slice(5)));
    }
    parts.push(lines[0]);
  }
}

/* Adds an event's text to the run's message. */
function take(run, e) {
  if (e.error)
    throw new Error(e.error.message || String(e.error));
  const m = run.message, choice = e.choices?.[0], delta = choice?.delta || {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (isText(reasoning))
    m.reasoning += reasoning;
  if (isText(delta.content))
    m.content += m.content || !m.reasoning ? delta.content : delta.content.trimStart();
  if (reasoning || delta.content) {
    run.pieces++;
    if (!run.first) {
      run.first = performance.now();
      $("ttft").textContent = seconds(run.first - run.begin);
    }
  }
  run.finish = choice?.finish_reason ?? run.finish;
  run.usage = e.usage ?? run.usage;
  if (!run.due) { /* at most a quarter of the time for drawing */
    run.due = true;
    setTimeout(requestAnimationFrame, 3 * run.drawing, () => draw(run));
  }
}

function draw(run) {
  const follow = atEnd(), begin = performance.now();
  if (running === run && begin - run.kept > 5000) { /* so that little is lost with the tab */
    run.kept = begin;
    keep(run.chat);
  }
  run.due = false;
  run.view.update(running === run);
  run.drawing = Math.min(performance.now() - begin, 1000);
  if (chat === run.chat)
    showContext();
  if (follow)
    toEnd();
}

function conclude(run) {
  const m = run.message, usage = run.usage, tokens = usage?.completion_tokens ?? run.pieces;
  if (run.first)
    m.figures = {
      tokens: tokens + number(run.before?.tokens), finish: run.finish, first: run.first - run.begin,
      prompt: usage?.prompt_tokens, cached: usage?.prompt_tokens_details?.cached_tokens,
      context: isNumber(usage?.prompt_tokens) ? usage.prompt_tokens + tokens : undefined,
      tps: tokens > 1 ? (tokens - 1) * 1000 / (performance.now() - run.first) : undefined };
  else
    m.figures = run.finish ? { ...run.before, finish: run.finish } : run.before;
}

/* Answers the chat's last message, or continues its answer `m`. */
async function answer(c, m) {
  const body = running ? null : request(c, c.leaf, Boolean(m));
  if (!body) {
    if (!running)
      notice("A setting is no valid JSON object: correct it first.");
    showChat();
    return;
  }
  if (m)
    m.reasoning ??= "";
  else
    m = addMessage(c, c.leaf, { role: "assistant", content: "", reasoning: "" });
  delete m.error;
  const now = performance.now();
  views.delete(m);
  const run = { chat: c, message: m, view: view(c, m), before: m.figures, drawing: 0, kept: now,
                abort: new AbortController(), begin: now, first: 0, pieces: 0, due: false,
                finish: null, usage: null };
  running = run;
  m.figures = { ...m.figures, finish: "stopped" }; /* if the tab is closed meanwhile */
  keep(c);
  buttons();
  showChat();
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify(body), signal: run.abort.signal });
    if (!response.ok)
      throw new Error(await errorText(response));
    if (!await events(response, e => take(run, e)) && !run.finish)
      throw new Error("The answer broke off.");
  } catch (e) {
    if (run.abort.signal.aborted)
      run.finish = "stopped";
    else
      m.error = e instanceof TypeError ? "The server does not answer." : e.message;
    run.abort.abort();
  }
  conclude(run);
  running = null;
  if (chats.includes(c)) /* else it was deleted meanwhile */
    keep(c);
  buttons();
  draw(run);
  if (chat === c)
    showChat();
}

function buttons() {
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
}

/* ---- how much of the context is taken ------------------------------------------------------- */

function showContext() {
  const last = chat ? path(chat).findLast(m => isNumber(m.figures?.context)) : null;
  const live = running && running.chat === chat ? running.pieces : 0;
  const taken = number(last?.figures.context) + live;
  $("context").hidden = !contextLimit || !taken;
  $("context-bar").max = contextLimit || 1;
  $("context-bar").value = taken;
  $("context-bar").high = 0.9 * contextLimit;
  $("context-text").textContent = (live ? "about " : "") + count(taken) + " of " +
    count(contextLimit) + " tokens of context";
}
