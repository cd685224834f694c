/* SPDX-License-Identifier: Apache-2.0 */
/* serve_log.c: --log-format and --log-level of serve, and what the command itself says beside the
 * lines of requests: at the start, at signals, at the end.
 *
 * As text these are lines for people ("server: listening on ..."), without a time. As JSON they are
 * like all other lines, so that whoever reads the log reads JSON only; the facts about model and
 * cache are not printed then.
 */
#include "serve.h"

#include <string.h>

int serve_log_read(const struct command *c, struct serve_args *a) {
    const char *format = a->log_format;
    a->server.log_json = strcmp(format, "json") == 0;
    a->quiet |= a->server.log_json;
    if (!a->server.log_json && strcmp(format, "text") != 0)
        return usage_error(c, "--log-format: \"%.40s\" is neither text nor json", format);
    if (!server_log_level_read(a->log_level, &a->server.log_level))
        return usage_error(c, "--log-level: \"%.40s\" is none of error, warn, info, debug",
                           a->log_level);
    return EXIT_GOOD;
}

void serve_log_line(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static void write_note(const struct server_options *o, enum server_log_level level,
                       const char *text) {
    char *line = level <= o->log_level
                     ? server_log_line(o->log_json, level, json_pack("{s:s}", "message", text))
                     : NULL;
    if (line)
        serve_log_line(NULL, line);
    mem_free(line);
}

void serve_note(void *user, const char *line) {
    write_note(user, SERVER_LOG_WARN, line);
}

void serve_say(const struct server_options *o, enum server_log_level level, const char *format,
               ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (o->log_json)
        write_note(o, level, text);
    else if (level <= o->log_level)
        fprintf(stderr, "server: %s\n", text);
}
