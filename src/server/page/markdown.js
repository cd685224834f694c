/* SPDX-License-Identifier: Apache-2.0
   What a model says, as elements: markdown-it parses it, highlight.js colours code, KaTeX makes
   math MathML, and DOMPurify lets only known elements through. What takes too long is shown as
   text. */

const LONG_TEXT = 400000, LONG_LINE = 20000, LONG_CODE = 40000, LONG_MATH = 4000;

const purify = required("dompurify");
const katex = required("katex");
const hljs = required("highlight.js");
for (const name of Object.keys(modules)) {
  const language = /^highlight\.js\/languages\/(.*)\.js$/.exec(name)?.[1];
  if (language)
    hljs.registerLanguage(language, required(name));
}
const markdown = required("markdown-it")({ linkify: true });
const escaped = markdown.utils.escapeHtml;

function colored(code, language) {
  if (!hljs.getLanguage(language) || code.length > LONG_CODE)
    return escaped(code);
  return hljs.highlight(language, code, true).value;
}

function math(tex, displayMode) {
  if (tex.length <= LONG_MATH)
    try {
      return katex.renderToString(tex, { displayMode, output: "mathml", strict: "ignore",
                                         maxSize: 20, maxExpand: 300 })
        .replace(/ style="[^"]*"/g, ""); /* the policy forbids them */
    } catch { /* no TeX: as it was written */ }
  return "<code>" + escaped(tex) + "</code>";
}

/* What was rendered lately: while an answer comes, most of it is as it was. */
function remembering(render) {
  const known = new Map();
  return (...key) => {
    const name = JSON.stringify(key);
    let html = known.get(name);
    if (html === undefined) {
      if (known.size >= 200)
        known.clear();
      known.set(name, html = render(...key));
    }
    return html;
  };
}
const coloredOnce = remembering(colored), mathOnce = remembering(math);

/* In CommonMark a link's destination in <> has no other "<", a title in () no other "(", and a
   reader may limit how deep a destination's parentheses nest. markdown-it before 12.0.3 (Debian's
   is 10.0.0) reads on to the end of the text instead, for each "](": quadratic time. */
const NO_LINK = { ok: false, pos: 0, lines: 0, str: "" }, DEEPEST = 32;
const { parseLinkDestination, parseLinkTitle } = markdown.helpers;

/* Whether, from `at` on, more than `deepest` of `opens` are open before the end: that of the text,
   a blank unless `blanks` may stand there, or one more of `closes`. */
function opensTooMany(text, at, end, opens, closes, deepest, blanks) {
  let open = 0;
  for (let i = at; i < end && open >= 0 && open <= deepest && (blanks || text[i] > " "); i++)
    if (text[i] === "\\")
      i++;
    else
      open += text[i] === opens ? 1 : text[i] === closes ? -1 : 0;
  return open > deepest;
}
markdown.helpers.parseLinkDestination = (text, at, end) => {
  const angle = text[at] === "<";
  const none = angle ? opensTooMany(text, at + 1, end, "<", ">", 0, true)
    : opensTooMany(text, at, end, "(", ")", DEEPEST, false);
  return none ? NO_LINK : parseLinkDestination(text, at, end);
};
markdown.helpers.parseLinkTitle = (text, at, end) =>
  text[at] === "(" && opensTooMany(text, at + 1, end, "(", ")", 0, true) ? NO_LINK
    : parseLinkTitle(text, at, end);

/* ---- math: \( \), \[ \], $ $ and $$ $$ ------------------------------------------------------ */

const CLOSES = { "\\(": "\\)", "\\[": "\\]", "$$": "$$" };

function inlineMath(state, silent) {
  const rest = state.src.slice(state.pos, Math.min(state.posMax, state.pos + LONG_MATH));
  const open = rest.slice(0, 2) in CLOSES ? rest.slice(0, 2) : "$";
  const end = rest.startsWith(open) ? rest.indexOf(CLOSES[open] ?? open, open.length) : -1;
  const tex = rest.slice(open.length, end);
  /* Prices are no math: "$5 or $6". */
  if (end < 0 || !tex.trim() || (open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(rest[end + 1]))))
    return false;
  if (!silent)
    Object.assign(state.push("math", "math", 0), { content: tex, markup: open });
  state.pos += end + open.length;
  return true;
}

/* From a line that begins with $$ or \[ to one that ends with $$ or \], at most 200 lines on. */
function blockMath(state, start, end, silent) {
  const text = line => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  const open = text(start).slice(0, 2), close = open === "\\(" ? undefined : CLOSES[open];
  if (!close || state.sCount[start] - state.blkIndent >= 4)
    return false;
  let tex = text(start).slice(2);
  for (let line = start; line < Math.min(end, start + 200) && tex.length <= LONG_MATH;) {
    const at = tex.indexOf(close);
    if (at >= 0 && tex.slice(at + 2).trim() !== "")
      return false;
    if (at >= 0) {
      if (!silent) {
        Object.assign(state.push("math", "math", 0),
                      { content: tex.slice(0, at), markup: open, block: true,
                        map: [start, line + 1] });
        state.line = line + 1;
      }
      return true;
    }
    if (++line < end)
      tex += "\n" + text(line);
  }
  return false;
}
markdown.inline.ruler.before("escape", "math", inlineMath);
markdown.block.ruler.before("fence", "math", blockMath,
                            { alt: ["paragraph", "reference", "blockquote", "list"] });

/* "- [x] done": a box instead of the brackets. */
markdown.core.ruler.push("tasks", state => {
  state.tokens.forEach((token, i) => {
    const text = token.children?.[0], box = /^\[([ xX])\](?= )/.exec(text?.content || "");
    if (box && state.tokens[i - 2]?.type === "list_item_open")
      text.content = (box[1] === " " ? "☐" : "☑") + text.content.slice(3);
  });
});

/* ---- HTML that DOMPurify reads -------------------------------------------------------------- */

const rules = markdown.renderer.rules;
rules.math = (tokens, i) => {
  const display = tokens[i].markup !== "$" && tokens[i].markup !== "\\(";
  const html = mathOnce(tokens[i].content, display);
  return display ? "<span class=\"display\" tabindex=\"0\">" + html + "</span>" : html;
};
rules.fence = rules.code_block = (tokens, i) => {
  const language = tokens[i].info.trim().split(/\s+/)[0];
  return "<div class=\"code\"><div class=\"code-bar\"><span>" + escaped(language || "text") +
    "</span></div><pre tabindex=\"0\"><code>" +
    coloredOnce(tokens[i].content, language.toLowerCase()) + "</code></pre></div>";
};
rules.image = (tokens, i, options, env, self) => { /* nothing is loaded: a link to it */
  const text = self.renderInlineAsText(tokens[i].children, options, env) || "image";
  return "<a href=\"" + escaped(tokens[i].attrGet("src")) + "\">" + escaped(text) + "</a>";
};
for (const name of ["th_open", "td_open"]) /* the policy forbids style attributes */
  rules[name] = (tokens, i) => {
    const align = /right|center/.exec(tokens[i].attrGet("style") || "")?.[0];
    return "<" + tokens[i].tag + (align ? " class=\"" + align + "\"" : "") + ">";
  };
rules.table_open = () => "<div class=\"table\" tabindex=\"0\"><table>";
rules.table_close = () => "</table></div>";

const ALLOWED = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "em", "strong", "s", "code", "pre", "ul",
    "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "a", "span", "div",
    "math", "semantics", "annotation", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo",
    "mover", "mpadded", "mphantom", "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub",
    "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"],
  ALLOWED_ATTR: [
    "href", "class", "start", "tabindex", "title", "accent", "accentunder", "columnalign",
    "columnlines", "columnspacing", "depth", "display", "displaystyle", "encoding", "fence",
    "height", "linethickness", "lspace", "mathcolor", "mathbackground", "mathvariant", "maxsize",
    "minsize", "movablelimits", "notation", "rowlines", "rowspacing", "rspace", "scriptlevel",
    "separator", "stretchy", "symmetric", "voffset", "width", "xmlns"],
  /* Of schemes these; what is no URI at all (the values of other attributes) passes. */
  ALLOWED_URI_REGEXP: /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.:-]|$))/i,
  ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true
};

/* The HTML of blocks as an element for each; links open elsewhere and tell nothing, code can be
   copied. */
function cleaned(htmls) {
  const boxes = htmls.map(html => "<div class=\"block\">" + html + "</div>");
  const clean = purify.sanitize(boxes.join(""), ALLOWED); /* one call: each parses a document */
  if (clean.children.length !== htmls.length)
    throw new Error("the blocks are not balanced");
  for (const a of clean.querySelectorAll("a[href]"))
    Object.assign(a, { target: "_blank", rel: "noopener noreferrer" });
  for (const bar of clean.querySelectorAll(".code-bar")) {
    const code = bar.nextElementSibling;
    bar.append(button("Copy", "Copy code", () => copy(code.textContent, "Code")));
  }
  return clean;
}

/* The HTML of each top-level block. */
function blocks(text) {
  const env = {}, out = [];
  const tokens = markdown.parse(text, env);
  for (let i = 0, from = 0; i < tokens.length; i++)
    if (tokens[i].level === 0 && tokens[i].nesting <= 0) {
      out.push(markdown.renderer.render(tokens.slice(from, i + 1), markdown.options, env));
      from = i + 1;
    }
  return out;
}

const tooLong = text => text.length > LONG_TEXT ||
  text.length > LONG_LINE && text.split("\n").some(line => line.length > LONG_LINE);

function fillPlain(body, text, why) {
  body.blocks = null;
  body.replaceChildren(make("p", { className: "soft" }, why),
                       make("pre", { className: "plain", tabIndex: 0 }, text));
}

/* Shows text in `body`; blocks that are as they were stay the same elements. */
function fill(body, text) {
  if (body.text === text)
    return;
  body.text = text;
  if (tooLong(text)) {
    fillPlain(body, text, "Too long to be formatted.");
    return;
  }
  try {
    const now = blocks(text), before = body.blocks;
    let same = 0;
    while (before && same < now.length && now[same] === before[same])
      same++;
    [...body.childNodes].slice(same).forEach(e => e.remove());
    body.append(cleaned(now.slice(same)));
    body.blocks = now;
  } catch (e) { /* a library failed: what was said stays readable */
    console.error(e);
    fillPlain(body, text, "This cannot be formatted.");
  }
}
