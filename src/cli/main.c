/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the program `kvasir`. Finds the command, runs it, turns its result into the exit code.
 *
 * If a reader closes our standard output (head, a pager), or a file grows beyond the limit of its
 * size (ulimit -f), that is an error of the write, reported like a full disk, not a signal. A
 * mapped file that is truncated while it is read is an error of the command, too.
 */
#include "cli.h"

#include <signal.h>
#include <string.h>

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} COMMANDS[] = {
    {"generate", "answer a prompt", generate_main},
    {"demo", "answer a question about a text over two caches, side by side", demo_main},
    {"chat", "chat with a model, in this process or on a server", chat_main},
    {"pull", "download models by name", pull_main},
    {"list", "list the models that were pulled", list_main},
    {"show", "say where a model is", show_main},
    {"rm", "remove models by name", rm_main},
    {"cache-prompt", "evaluate a prompt and write its cache to a file", cache_prompt_main},
    {"serve", "answer requests over HTTP, with the APIs of OpenAI and Anthropic", serve_main},
    {"top", "show what a running server does", top_main},
    {"batch", "answer a file of requests, many at once", batch_main},
    {"cache", "list, verify and clean a folder of stored pages", cache_main},
    {"perplexity", "measure a model's loss on a text, and its KL divergence from another run",
     perplexity_main},
    {"quality", "compare cache formats by their KL divergence from an exact run", quality_main},
    {"bench", "measure a model's speed by depth, batch and cache format", bench_main},
    {"bench-kv-cache", "measure memory, error and time of cache formats", bench_kv_cache_main},
    {"calibrate", "measure the constant part of a model's keys, for --key-centre", calibrate_main},
    {"convert", "write a checkpoint as a folder that mlx-lm loads", convert_main},
    {"info", "show what a model file holds and what its cache costs", info_main},
    {"simulate", "replay recorded requests through the scheduler and the cache, without a model",
     simulate_main},
    {"grammar", "say what a JSON schema or grammar accepts", grammar_main},
    {"exactness", "say whether a server's answers depend on its cache and on other requests",
     exactness_main},
    {"embed", "print the embeddings of texts", embed_main},
    {"tokenize", "convert text or chats to token ids, or ids to text", tokenize_main},
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof *COMMANDS };

static void print_usage(FILE *to) {
    fprintf(to, "usage: kvasir COMMAND [flags]\n\n"
                "Runs language models with a KV cache that is quantized end to end.\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-16s%s\n", COMMANDS[i].name, COMMANDS[i].help);
    fprintf(to,
            "\nkvasir help COMMAND lists a command's flags, kvasir version prints the version.\n");
}

/* What other programs call a command of ours. */
static const char *const OTHERS[][2] = {
    {"run", "chat"},  {"ls", "list"},   {"download", "pull"},     {"get", "pull"},
    {"remove", "rm"}, {"delete", "rm"}, {"complete", "generate"}, {"ps", "top"}};

static int unknown_command(const char *name) {
    struct near near = {0};
    if (*name == '-')
        return usage_error(NULL,
                           "unknown command \"%.60s\": the command comes before its flags, as in "
                           "kvasir chat %.60s; see kvasir help",
                           name, name);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (strcmp(OTHERS[i][0], name) == 0)
            near.best = OTHERS[i][1];
    const bool known = near.best != NULL;
    for (size_t i = 0; i < N_COMMANDS && !known; i++)
        near_try(&near, name, strlen(name), COMMANDS[i].name);
    if (near.best)
        return usage_error(NULL, "unknown command \"%.60s\": did you mean %s? See kvasir help",
                           name, near.best);
    return usage_error(NULL, "unknown command \"%.60s\": kvasir help lists the commands", name);
}

static int run_command(int argc, char **argv) {
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[0], COMMANDS[i].name) == 0)
            return COMMANDS[i].run(argc, argv);
    return unknown_command(argv[0]);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    kvasir_catch_file_faults();
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    const bool help = strcmp(argv[1], "help") == 0;
    if (help && argc > 2)
        return run_command(2, (char *[]){argv[2], "--help", NULL});
    if (help || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        print_usage(stdout);
    else if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0)
        printf("kvasir %s\n", kvasir_version());
    else
        return run_command(argc - 1, argv + 1);
    return finish_output(NULL);
}
