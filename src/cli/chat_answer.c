/* SPDX-License-Identifier: Apache-2.0 */
/* chat_answer.c: displays an answer of `kvasir chat` as it comes, and keeps it.
 *
 *     reasoning  dim on a terminal, not written anywhere else
 *     text       standard output, as it comes
 *
 * Invariant
 *   TERMINAL-1  On a terminal control characters other than line ends and tabs are shown as '?', so
 *               that a model or a server cannot move the cursor. The kept text contains them.
 */
#include "cli/chat_main.h"

#include <stdlib.h>
#include <string.h>

void answer_begin(struct answer *a, bool terminal) {
    *a = (struct answer){
        .terminal = terminal, .colour = terminal && use_colour(stdout), .begin = clock_seconds()};
}

static void write_safely(FILE *to, const char *text, size_t len) {
    size_t from = 0; /* what is not written yet */
    for (size_t i = 0; i < len; i++) {
        unsigned char x = (unsigned char)text[i];
        bool c1 = x == 0xc2 && i + 1 < len && (unsigned char)text[i + 1] < 0xa0; /* U+0080 .. 9F */
        if (!c1 && x != 0x7f && (x >= 0x20 || x == '\n' || x == '\t'))
            continue;
        fwrite(text + from, 1, i - from, to);
        fputc('?', to);
        i += c1;
        from = i + 1;
    }
    fwrite(text + from, 1, len - from, to);
}

void print_safely(FILE *to, const char *text) {
    write_safely(to, text, strlen(text));
}

static int show(const struct command *c, struct answer *a, enum answer_part_kind part,
                const char *text, size_t len) {
    if (!a->terminal && part == ANSWER_REASONING)
        return EXIT_GOOD;
    const bool was_reasoning = a->begun && a->shown == ANSWER_REASONING;
    if (part == ANSWER_REASONING && !was_reasoning && a->colour)
        fputs("\033[2m", stdout);
    if (part == ANSWER_CONTENT && was_reasoning)
        printf("%s%s", a->colour ? "\033[0m" : "", a->last == '\n' ? "\n" : "\n\n");
    a->begun = true;
    a->shown = part;
    a->last = text[len - 1];
    if (a->terminal)
        write_safely(stdout, text, len);
    else
        fwrite(text, 1, len, stdout);
    return finish_output(c);
}

int answer_put(const struct command *c, struct answer *a, enum answer_part_kind part,
               const char *text, size_t len) {
    /* Line ends between reasoning and text belong to neither part. */
    if (part == ANSWER_CONTENT && a->parts[ANSWER_REASONING].len && !a->parts[part].len)
        for (; len && *text == '\n'; len--)
            text++;
    if (!len)
        return EXIT_GOOD;
    if (a->first == 0)
        a->first = clock_seconds();
    if (!text_append(&a->parts[part], text, len))
        return run_error(c, "out of memory for the answer");
    return show(c, a, part, text, len);
}

int answer_end(const struct command *c, struct answer *a) {
    a->end = clock_seconds();
    if (a->first == 0)
        a->first = a->end;
    if (a->begun && a->shown == ANSWER_REASONING)
        fputs(a->colour ? "\033[0m" : "", stdout);
    if (a->begun && a->last != '\n')
        putchar('\n');
    if (a->terminal)
        putchar('\n');
    return finish_output(c);
}

void answer_free(struct answer *a) {
    for (size_t i = 0; i < sizeof a->parts / sizeof *a->parts; i++)
        text_free(&a->parts[i]);
}

void answer_print_stats(const struct answer *a) {
    if (a->end == 0) {
        fprintf(stderr, "answer: none yet\n");
        return;
    }
    const double first = a->first - a->begin, rest = a->end - a->first;
    if (!a->counted) {
        fprintf(stderr, "answer: %.2f s to the first token, %.2f s for the others\n", first, rest);
        return;
    }
    fprintf(stderr, "prompt: %llu tokens, %llu of them from the cache; %.2f s to the first token\n",
            (unsigned long long)a->prompt_tokens, (unsigned long long)a->cached_tokens, first);
    fprintf(stderr, "answer: %llu tokens, %.1f tokens/s\n", (unsigned long long)a->tokens,
            a->tokens > 1 ? ratio((double)(a->tokens - 1), rest) : 0);
}
