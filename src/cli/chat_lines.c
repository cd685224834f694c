/* SPDX-License-Identifier: Apache-2.0 */
/* chat_lines.c: input of `kvasir chat`.
 *
 *     terminal   libedit: editing, history, ~/.editrc. What is pasted comes as one piece with its
 *                line ends (the terminal brackets it) and waits for Enter
 *     else       lines as they are, no prompt
 *
 * In both, a backslash at the end of a line continues it on the next line, and a line that begins
 * with """ begins a message that goes on to the line that ends with """.
 *
 * The history is $XDG_STATE_HOME/kvasir/history (~/.local/state if that is not set), readable only
 * by its owner, and written after every message.
 */
#include "cli/chat_main.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000 };

struct editor {
    EditLine *edit;
    History *history;
    struct text_buf path; /* of the history; empty: it is not kept */
    bool goes_on;         /* show the prompt of a continued line */
    bool dropped;         /* Ctrl-C ended the current line */
    char *prefill;        /* what the next line begins with; NULL */
};

/* ---- the history's file ---------------------------------------------------------------------- */

/* A variable that names a folder, which the XDG specification wants to be absolute. */
static const char *folder_of(const char *variable) {
    const char *folder = getenv(variable);
    return folder && *folder == '/' ? folder : NULL;
}

static int open_history(const struct command *c, struct editor *e) {
    HistEvent event;
    kvasir_error err;
    e->history = history_init();
    if (!e->history || history(e->history, &event, H_SETSIZE, HISTORY_LINES) < 0 ||
        history(e->history, &event, H_SETUNIQUE, 1) < 0)
        return run_error(c, "out of memory for the history");
    const char *state = folder_of("XDG_STATE_HOME"), *home = folder_of("HOME");
    const char *folder = state ? state : home;
    if (!folder)
        return EXIT_GOOD;
    if (!text_puts(&e->path, folder) || (!state && !text_puts(&e->path, "/.local/state")) ||
        !text_puts(&e->path, "/kvasir"))
        return run_error(c, "out of memory for the history");
    if (folder_make_all(e->path.data, 0700, &err) != KVASIR_OK) {
        fprintf(stderr, "note:   no history: %s\n", err.text);
        text_free(&e->path);
        return EXIT_GOOD;
    }
    if (!text_puts(&e->path, "/history"))
        return run_error(c, "out of memory for the history");
    history(e->history, &event, H_LOAD, e->path.data); /* none yet is fine */
    return EXIT_GOOD;
}

static void remember(struct editor *e, const char *text) {
    HistEvent event;
    history(e->history, &event, H_ENTER, text);
    if (e->path.len)
        history(e->history, &event, H_SAVE, e->path.data);
}

/* ---- the editor ------------------------------------------------------------------------------ */

static char *show_prompt(EditLine *edit) {
    static char first[] = "> ", next[] = "... ";
    struct editor *e;
    el_get(edit, EL_CLIENTDATA, &e);
    return e->goes_on ? next : first;
}

/* Far beyond any context: a paste that never ends is not read forever. */
static const size_t PASTE_MAX = 1 << 22;

/* Bound to the sequence that a terminal sends before a paste: reads up to the sequence after it. */
static unsigned char take_paste(EditLine *edit, int key) {
    static const wchar_t END[] = L"\033[201~";
    const size_t end_len = sizeof END / sizeof *END - 1;
    (void)key;
    size_t n = 0, cap = 0;
    wchar_t *pasted = NULL, c;
    bool whole = false;
    while (!whole && n < PASTE_MAX && el_wgetc(edit, &c) == 1) {
        if (!ARRAY_GROW(pasted, cap, n + 1))
            break;
        pasted[n++] = c == L'\r' ? L'\n' : c;
        whole = n >= end_len && wmemcmp(pasted + n - end_len, END, end_len) == 0;
    }
    bool good = whole;
    if (good && n > end_len) {
        pasted[n - end_len] = 0;
        good = el_winsertstr(edit, pasted) == 0;
    }
    free(pasted);
    return good ? CC_REFRESH : CC_ERROR;
}

/* At the prompt Ctrl-C is a key: a signal just before libedit waits for one would be noticed only
 * with the next key (edit_line shows a prompt in no other mode). */
static unsigned char drop_line(EditLine *edit, int key) {
    struct editor *e;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &e);
    e->dropped = true;
    return CC_EOF;
}

static int open_editor(const struct command *c, struct lines *l) {
    struct editor *e = l->editor = calloc(1, sizeof *e);
    if (!e)
        return run_error(c, "out of memory for the editor");
    int code = open_history(c, e);
    if (code)
        return code;
    /* libedit reads characters of the locale; chats are UTF-8. */
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    e->edit = el_init("kvasir", stdin, stdout, stderr);
    if (!e->edit)
        return run_error(c, "cannot edit lines on this terminal");
    el_set(e->edit, EL_CLIENTDATA, e);
    el_set(e->edit, EL_PROMPT, show_prompt);
    el_set(e->edit, EL_EDITOR, "emacs");
    el_set(e->edit, EL_HIST, history, e->history);
    el_set(e->edit, EL_SIGNAL, 1); /* the terminal is as it was while a signal is handled */
    /* (el_set would keep copies that nobody frees.) */
    el_wset(e->edit, EL_ADDFN, L"kvasir-paste", L"take what is pasted", take_paste);
    el_set(e->edit, EL_BIND, "\\e[200~", "kvasir-paste", NULL);
    el_wset(e->edit, EL_ADDFN, L"kvasir-drop", L"drop the line", drop_line);
    el_set(e->edit, EL_BIND, "^C", "kvasir-drop", NULL);
    el_set(e->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(e->edit, NULL);
    return EXIT_GOOD;
}

static void bracket_pastes(bool on) {
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
}

/* Reads one line from the terminal. *line is NULL at the end and if Ctrl-C, or SIGINT from
 * elsewhere, dropped the line. */
static int edit_line(const struct command *c, struct editor *e, const char **line, size_t *len) {
    int n = 0;
    bracket_pastes(true);
    e->dropped = false;
    el_set(e->edit, EL_PREP_TERM, 1); /* libedit would do so after the prompt */
    /* Here, since preparing the terminal may copy its characters over those of the editor. */
    el_set(e->edit, EL_SETTY, "-d", "intr=", NULL);
    if (e->prefill)
        el_push(e->edit, e->prefill); /* as if typed */
    mem_free(e->prefill);
    e->prefill = NULL;
    errno = 0;
    *line = el_gets(e->edit, &n);
    int error = errno;
    bracket_pastes(false);
    e->dropped |= interrupted();
    if (!*line) {
        putchar('\n');
        fflush(stdout);
        return n < 0 && !e->dropped ? run_error(c, "standard input: %s", strerror(error))
                                    : EXIT_GOOD;
    }
    *len = (size_t)n;
    if (*len && (*line)[*len - 1] == '\n')
        --*len;
    return EXIT_GOOD;
}

static int read_line(const struct command *c, struct lines *l, const char **line, size_t *len) {
    if (l->terminal)
        return edit_line(c, l->editor, line, len);
    int code = line_next(c, &l->pipe);
    *line = l->pipe.line;
    *len = l->pipe.len;
    return code;
}

/* ---- lines ----------------------------------------------------------------------------------- */

int lines_open(const struct command *c, struct lines *l) {
    *l = (struct lines){.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    return l->terminal ? open_editor(c, l) : EXIT_GOOD;
}

static const char QUOTES[] = "\"\"\"";
enum { QUOTES_LEN = sizeof QUOTES - 1 };

static bool begins_quoted(const char *line, size_t n) {
    return n >= QUOTES_LEN && memcmp(line, QUOTES, QUOTES_LEN) == 0;
}

static bool ends_quoted(const char *line, size_t n) {
    return n >= QUOTES_LEN && memcmp(line + n - QUOTES_LEN, QUOTES, QUOTES_LEN) == 0;
}

/* Adds a line to the message. *quoted: within """ and """. *more: another line follows. */
static bool add_line(struct lines *l, const char *line, size_t n, bool first, bool *quoted,
                     bool *more) {
    if (first && begins_quoted(line, n)) {
        *quoted = true;
        line += QUOTES_LEN;
        n -= QUOTES_LEN;
    }
    const bool closed = *quoted && ends_quoted(line, n), goes_on = n && line[n - 1] == '\\';
    *more = *quoted ? !closed : goes_on;
    if (closed)
        n -= QUOTES_LEN;
    else if (!*quoted && goes_on)
        n--;
    /* a line end after the opening quotes, or before the closing ones, is not of the message */
    const bool line_end = !first && !(*quoted && (!l->text.len || (closed && !n)));
    return (!line_end || text_puts(&l->text, "\n")) && text_append(&l->text, line, n);
}

int lines_next(const struct command *c, struct lines *l, const char **text, size_t *len) {
    bool more = true, any = false, quoted = false;
    *text = NULL;
    l->text.len = 0;
    while (more) {
        const char *line;
        size_t n = 0;
        if (l->terminal)
            l->editor->goes_on = any;
        int code = read_line(c, l, &line, &n);
        if (code)
            return code;
        if (!line && (l->terminal ? l->editor->dropped : interrupted())) {
            l->text.len = 0;
            any = true;
        }
        if (!line)
            break;
        if (!add_line(l, line, n, !any, &quoted, &more))
            return run_error(c, "out of memory for a line");
        any = true;
    }
    if (!any)
        return EXIT_GOOD;
    if (!text_append(&l->text, "", 0))
        return run_error(c, "out of memory for a line");
    *text = l->text.data;
    *len = l->text.len;
    if (l->terminal && !line_is_blank(*text, *len))
        remember(l->editor, *text);
    return EXIT_GOOD;
}

bool lines_prefill(struct lines *l, const char *text) {
    struct text_buf typed = {0};
    ASSERT(l->editor);
    /* as a paste, which may have line ends */
    if (!text_printf(&typed, "\033[200~%s\033[201~", text))
        return false;
    mem_free(l->editor->prefill);
    l->editor->prefill = typed.data;
    return true;
}

void lines_close(struct lines *l) {
    struct editor *e = l->editor;
    if (e && e->edit)
        el_end(e->edit);
    if (e && e->history)
        history_end(e->history);
    if (e) {
        text_free(&e->path);
        mem_free(e->prefill);
    }
    free(e);
    line_reader_free(&l->pipe);
    text_free(&l->text);
    *l = (struct lines){0};
}
