# SPDX-License-Identifier: Apache-2.0
#
# join.cmake: joins index.html, page.css, the scripts of this folder and the libraries that they use
# into one document without references. The libraries are Debian's packages: CommonJS modules in
# /usr/share/nodejs, each of which becomes a function in a table (modules.js calls them).
#
#   cmake -DOUT=FILE -DNODE=/usr/share/nodejs -DKATEX=katex.js -P join.cmake

set(LANGUAGES bash cmake cpp cs css diff dockerfile go haskell ini java javascript json julia kotlin
              lua makefile markdown nginx objectivec perl php powershell protobuf python r ruby rust
              scala shell sql swift tex typescript xml yaml)
# In this order: a script uses what those before it define; start.js runs them all.
set(SCRIPTS base kept tree markdown messages settings panel answer input chats start)

# Text that would end a script element, or open a comment in it, is written in another way.
function(script_text file out)
  file(READ "${file}" text)
  string(REPLACE "</script" "<\\/script" text "${text}")
  string(REPLACE "<!--" "<\\!--" text "${text}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

set(libraries "")
function(add_module name file)
  script_text("${file}" text)
  if(file MATCHES "\\.json$")
    string(PREPEND text "module.exports = ")
  endif()
  string(APPEND libraries "modules[\"${name}\"] = function (module, exports, require) {\n${text}\n"
                          "};\n")
  set(libraries "${libraries}" PARENT_SCOPE)
endfunction()

# The scripts below FOLDER, as name/path.
macro(add_modules name folder)
  file(GLOB_RECURSE files RELATIVE "${folder}" "${folder}/*.js" "${folder}/*.json")
  list(FILTER files EXCLUDE REGEX "(^|/)(node_modules|dist|bin|test)/|package.*json$|lock.json$")
  list(SORT files)
  foreach(file IN LISTS files)
    add_module("${name}/${file}" "${folder}/${file}")
  endforeach()
endmacro()

script_text("${CMAKE_CURRENT_LIST_DIR}/modules.js" modules)
add_modules(markdown-it "${NODE}/markdown-it")
foreach(part linkify-it mdurl uc.micro) # inside markdown-it's package, or beside it
  if(EXISTS "${NODE}/markdown-it/node_modules/${part}")
    add_modules(${part} "${NODE}/markdown-it/node_modules/${part}")
  else()
    add_modules(${part} "${NODE}/${part}")
  endif()
endforeach()
add_module(highlight.js/index.js "${NODE}/highlight.js/lib/highlight.js")
foreach(language IN LISTS LANGUAGES)
  add_module(highlight.js/languages/${language}.js
             "${NODE}/highlight.js/lib/languages/${language}.js")
endforeach()
add_module(dompurify/index.js "${NODE}/dompurify/dist/purify.min.js")
add_module(katex/index.js "${KATEX}")

set(own "\"use strict\";\n")
foreach(script IN LISTS SCRIPTS)
  script_text("${CMAKE_CURRENT_LIST_DIR}/${script}.js" text)
  string(APPEND own "${text}")
endforeach()
file(READ "${CMAKE_CURRENT_LIST_DIR}/licences.txt" licences)
file(READ "${CMAKE_CURRENT_LIST_DIR}/page.css" style)
file(READ "${CMAKE_CURRENT_LIST_DIR}/index.html" page)
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@LIBRARIES@" "/*! ${licences}*/\n${modules}${libraries}" page "${page}")
string(REPLACE "@SCRIPT@" "${own}" page "${page}")
file(WRITE "${OUT}" "${page}")
