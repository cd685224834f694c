/* SPDX-License-Identifier: Apache-2.0
   The libraries' modules by name, and the `require` that they expect. join.cmake fills the
   table. */
var modules = {};
/* DOMPurify 2.4.0 as Debian 12 corrected it (deb12u1) reads a local variable of another function
   where FORCE_BODY, which is off here, was looked at before. Without it, every call would throw. */
var shadowNode = { __depth: 0 };
var required = (function () {
  var loaded = {
    /* Part of Node. Browsers have it in URL. */
    punycode: { toASCII: function (host) { return new URL("http://" + host).hostname; },
                toUnicode: function (host) { return host; } }
  };
  /* The name of module `name` as the module `from` sees it. */
  function resolved(name, from) {
    var parts = /^\./.test(name) ? from.split("/").slice(0, -1) : [];
    name.split("/").forEach(function (part) {
      if (part === "..")
        parts.pop();
      else if (part !== "." && part !== "")
        parts.push(part);
    });
    var path = parts.join("/");
    return [path, path + ".js", path + "/index.js"].find(function (p) {
      return p in loaded || p in modules;
    });
  }
  return function require(name, from) {
    var found = resolved(name, from || "");
    if (!found)
      throw new Error("no module " + name);
    if (!(found in loaded)) {
      var module = { exports: {} };
      loaded[found] = module.exports;
      modules[found].call(module.exports, module, module.exports,
                          function (other) { return require(other, found); });
      loaded[found] = module.exports;
    }
    return loaded[found];
  };
})();
