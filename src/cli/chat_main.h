/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `kvasir chat`:
 *
 *   chat_main.c     the command: lines to messages and commands, messages to answers
 *   chat_lines.c    lines of a terminal, edited and remembered, or of a pipe
 *   chat_answer.c   an answer as it comes: shown, kept, measured
 *   chat_file.c     chats in files
 *   chat_engine.c   who answers: a model in this process
 *   chat_remote.c   who answers: a server
 *
 * (chat.c is about templates, for other commands too.)
 */
#ifndef KVASIR_CLI_CHAT_MAIN_H
#define KVASIR_CLI_CHAT_MAIN_H

#include "cli.h"
#include "server/server.h"

struct chat_options {
    const char *model, *url, *api_key, *system;
    kvasir_model_options load;
    struct chat_args chat;
    uint32_t max_tokens;
    struct sampling_args sampling;
    struct engine_args engine;
    bool quiet;
};

/* ---- lines (chat_lines.c) -------------------------------------------------------------------- */

struct lines {
    bool terminal; /* standard input and output are */
    struct editor *editor;
    struct line_reader pipe;
    struct text_buf text;
};
int lines_open(const struct command *c, struct lines *l);
/* The next message: a line and those that continue it, or the lines between """ and """; blank if
 * Ctrl-C dropped it. *text is NULL at the end, else valid until the next call. */
int lines_next(const struct command *c, struct lines *l, const char **text, size_t *len);
/* On a terminal: the next line begins with this text. False: out of memory. */
bool lines_prefill(struct lines *l, const char *text);
void lines_close(struct lines *l);

/* ---- an answer (chat_answer.c) --------------------------------------------------------------- */

/* Its parts are ANSWER_CONTENT and ANSWER_REASONING. */
struct answer {
    bool terminal, colour;
    struct text_buf parts[2];
    bool begun;                  /* something was written; the last part and byte of it: */
    enum answer_part_kind shown; /* this part */
    char last;                   /* this byte */
    bool cut;                    /* ended by the length limit */
    double begin, first, end;
    bool counted; /* the next three are known */
    uint64_t prompt_tokens, cached_tokens, tokens;
};
void answer_begin(struct answer *a, bool terminal);
/* More of it, in whole characters. */
int answer_put(const struct command *c, struct answer *a, enum answer_part_kind part,
               const char *text, size_t len);
int answer_end(const struct command *c, struct answer *a);
void answer_free(struct answer *a);
/* On standard error: times and tokens. */
void answer_print_stats(const struct answer *a);

/* Prints text from outside, with '?' for control characters other than line ends and tabs. */
void print_safely(FILE *to, const char *text);

/* ---- chats in files (chat_file.c) ------------------------------------------------------------ */

int chat_save(const struct command *c, const char *path, json_t *messages);
/* *messages: json_decref. */
int chat_load(const struct command *c, const char *path, json_t **messages);

/* ---- who answers (chat_engine.c, chat_remote.c) ---------------------------------------------- */

/* Zero-initialised is closed. */
struct chat_source {
    void *self;
    /* Answers an array of messages, the last of which is the user's. EXIT_GOOD also if Ctrl-C ended
     * the answer; otherwise an error was printed. */
    int (*answer)(void *self, json_t *messages, struct answer *a);
    void (*print_stats)(void *self); /* on standard error, of the cache */
    void (*close)(void *self);
};
int chat_engine_open(const struct command *c, const struct chat_options *o,
                     struct chat_source *out);
int chat_remote_open(const struct command *c, const struct chat_options *o,
                     struct chat_source *out);

#endif
