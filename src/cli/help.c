/* SPDX-License-Identifier: Apache-2.0 */
/* help.c: a command's table of flags (struct option in cli.h) as text.
 *
 *     -h, --help         for a terminal
 *     --help=man         the items of the list in its man page, in mdoc     \ tools/flags.py puts
 *     --help=markdown    the rows of a table                                / them into docs/
 *     --help=flags       a line for each: name, value, help, with tabs between (dist/completion/)
 */
#include "cli.h"

#include <string.h>

/* The value of a field, for "[default]"; "" if there is nothing to show. */
static const char *default_text(const struct option *o, void *args, char buf[64]) {
    if (o->shown || o->initial)
        return o->shown ? o->shown : o->initial;
    const void *p = option_field(o, args);
    buf[0] = 0;
    if ((o->kind == OPTION_TEXT || o->kind == OPTION_JSON) && *(const char *const *)p)
        return *(const char *const *)p;
    if (o->kind == OPTION_U32)
        snprintf(buf, 64, "%u", *(const uint32_t *)p);
    else if (o->kind == OPTION_I32)
        snprintf(buf, 64, "%d", *(const int32_t *)p);
    else if (o->kind == OPTION_INT)
        snprintf(buf, 64, "%d", *(const int *)p);
    else if (o->kind == OPTION_U64)
        snprintf(buf, 64, "%llu", (unsigned long long)*(const uint64_t *)p);
    else if (o->kind == OPTION_FLOAT)
        snprintf(buf, 64, "%g", (double)*(const float *)p);
    return buf;
}

/* ---- terminal -------------------------------------------------------------------------------- */

enum { HELP_COLUMN = 30, HELP_WIDTH = 100 };

/* Prints words from HELP_COLUMN on, starting at the cursor; lines end before HELP_WIDTH. */
static void print_wrapped(const char *text) {
    size_t column = HELP_COLUMN;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + n > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += (size_t)printf("%s%.*s", column > HELP_COLUMN ? " " : "", (int)n, text);
        text += n + (text[n] == ' ');
    }
    printf("\n");
}

static bool is_short(const char *flag) {
    return flag && flag[1] != '-';
}

/* "-m, --model"; another long name comes after it. */
static void names_text(const struct option *o, char buf[80]) {
    if (!o->alias)
        snprintf(buf, 80, "%s", o->name);
    else if (is_short(o->alias))
        snprintf(buf, 80, "%s, %s", o->alias, o->name);
    else
        snprintf(buf, 80, "%s, %s", o->name, o->alias);
}

static void print_row(const struct option *o, void *args) {
    char names[80], left[120], buf[64], right[400];
    names_text(o, names);
    snprintf(left, sizeof left, "  %s%s%s", names, o->value ? " " : "", o->value ? o->value : "");
    const char *initial = default_text(o, args, buf);
    snprintf(right, sizeof right, *initial ? "%s [%s]" : "%s", o->help, initial);
    if (strlen(left) < HELP_COLUMN)
        printf("%-*s", HELP_COLUMN, left);
    else
        printf("%s\n%*s", left, HELP_COLUMN, "");
    print_wrapped(right);
}

static void print_terminal(const struct command *c, void *args) {
    printf("usage: kvasir %s %s\n\n%s\n\n", c->name, c->usage, c->summary);
    for (size_t i = 0; i < c->n_options; i++)
        print_row(&c->options[i], args);
    printf("%-*s%s\n", HELP_COLUMN, "  -h, --help", "show this help");
    if (c->details)
        printf("\n%s\n", c->details);
}

/* ---- documents ------------------------------------------------------------------------------- */

/* Text of a man page: no line may look like a request, and flags keep their hyphens. */
static void print_mdoc_text(const char *text) {
    if (*text == '.' || *text == '\'')
        printf("\\&");
    for (bool flag = false; *text; text++) {
        flag = *text != ' ' && (flag || (*text == '-' && text[1] == '-'));
        if (*text == '\\')
            printf("\\e");
        else if (*text == ' ' && text[-1] == '.')
            printf("\n"); /* each sentence starts a line */
        else
            printf(*text == '-' && flag ? "\\-" : "%c", *text);
    }
}

static void print_mdoc_row(const struct option *o, void *args) {
    char buf[64];
    const char *initial = default_text(o, args, buf);
    if (o->name[0] != '-')
        printf(".It Ar %s", o->name);
    else if (is_short(o->alias))
        printf(".It Fl %s , Fl %s", o->alias + 1, o->name + 1);
    else
        printf(".It Fl %s%s%s", o->name + 1, o->alias ? " , Fl " : "",
               o->alias ? o->alias + 1 : "");
    printf("%s%s\n", o->value ? " Ar " : "", o->value ? o->value : "");
    print_mdoc_text(o->help);
    printf(".\n");
    if (*initial) {
        print_mdoc_text("Default: ");
        print_mdoc_text(initial);
        printf(".\n");
    }
}

/* A bar would end the cell. */
static void print_cell(const char *text) {
    for (; *text; text++)
        printf(*text == '|' ? "\\|" : "%c", *text);
}

static void print_markdown_row(const struct option *o, void *args) {
    char names[80], buf[64];
    names_text(o, names);
    printf("| `%s%s%s` | ", names, o->value ? " " : "", o->value ? o->value : "");
    print_cell(default_text(o, args, buf));
    printf(" | ");
    print_cell(o->help);
    printf(" |\n");
}

static void print_flag_row(const struct option *o, void *args) {
    (void)args;
    if (o->name[0] == '-')
        printf("%s\t%s\t%s\n", o->name, o->value ? o->value : "", o->help);
}

/* ---- all of them ----------------------------------------------------------------------------- */

bool help_print(const struct command *c, const char *word, void *args) {
    static const struct {
        const char *word;
        void (*row)(const struct option *o, void *args);
    } FORMS[] = {{"--help=man", print_mdoc_row},
                 {"--help=markdown", print_markdown_row},
                 {"--help=flags", print_flag_row}};
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_terminal(c, args);
        return true;
    }
    for (size_t f = 0; f < sizeof FORMS / sizeof *FORMS; f++) {
        if (strcmp(word, FORMS[f].word) != 0)
            continue;
        for (size_t i = 0; i < c->n_options; i++)
            FORMS[f].row(&c->options[i], args);
        if (FORMS[f].row == print_mdoc_row)
            printf(".It Fl h , Fl -help\nPrints all flags with their defaults.\n");
        return true;
    }
    return false;
}
