/* SPDX-License-Identifier: Apache-2.0 */
/* cache_folder.c: `kvasir cache`, the folder of stored pages that servers use: lists it, verifies
 * it, frees space in it. lab/ does the work; here are flags and tables. ls, stat and verify change
 * nothing and run beside a server; gc and clear need the folder for themselves. */
#include "cli.h"

#include <string.h>
#include <time.h>

struct cache_folder_args {
    const char *action, *dir;
    float limit_gb;
    bool json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct cache_folder_args, field)
static const struct option OPTIONS[] = {
    {.name = "ACTION", .kind = OPTION_TEXT, ROW(action), .required = true,
     .help = "ls (what is stored, by model and salt), stat (sums), verify (read and compare all "
             "bytes), gc (remove what is not found any more), or clear (remove all)"},
    {.name = "DIR", .kind = OPTION_TEXT, ROW(dir), .required = true,
     .help = "folder that serve stores pages in"},
    {.name = "--cache-disk-gb", .value = "N", .kind = OPTION_FLOAT, ROW(limit_gb), .max = 1e6,
     .shown = "none",
     .help = "gc: also remove the oldest records until all fit in N GiB"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print one JSON object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "cache",
    .summary = "Lists, verifies and cleans a folder of stored pages.",
    .usage = "ls|stat|verify|gc|clear DIR [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "ls, stat and verify also run while a server uses the folder.\n"
               "Exit codes: 0 success, 1 the run failed or verify found damage, 2 wrong usage.",
};

/* ---- sums ------------------------------------------------------------------------------------ */

struct sums {
    uint64_t pages, states, tokens, bytes, contexts;
};

/* Contexts are few: their groups are compared with each other. */
static struct sums sum_groups(const lab_cache_folder *f) {
    struct sums s = {0};
    for (size_t i = 0; i < f->n_groups; i++) {
        const lab_cache_group *g = &f->groups[i];
        size_t first = 0;
        while (strcmp(f->groups[first].context, g->context) != 0)
            first++;
        s.contexts += first == i;
        s.pages += g->pages;
        s.states += g->states;
        s.tokens += g->tokens;
        s.bytes += g->bytes;
    }
    return s;
}

static uint64_t wasted_bytes(const lab_cache_folder *f) {
    return f->older.bytes + f->expired.bytes + f->forgotten.bytes;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static json_t *json_groups(const lab_cache_folder *f) {
    json_t *list = json_array();
    for (size_t i = 0; i < f->n_groups; i++) {
        const lab_cache_group *g = &f->groups[i];
        json_t *o = json_object();
        put_text(o, "context", g->context);
        put_text(o, "root", g->root);
        put_text(o, "formats", g->formats);
        put_whole(o, "pages", g->pages);
        put_whole(o, "states", g->states);
        put_whole(o, "tokens", g->tokens);
        put_whole(o, "bytes", g->bytes);
        put_whole(o, "last_written", g->last_written);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *json_places(const lab_cache_folder *f) {
    json_t *list = json_array();
    for (size_t i = 0; i < f->n_places; i++) {
        json_t *o = json_object();
        put_text(o, "file", f->places[i].file);
        put_whole(o, "offset", f->places[i].offset);
        put_whole(o, "bytes", f->places[i].bytes);
        put_text(o, "what", f->places[i].torn ? "torn end" : "damage");
        json_array_append_new(list, o);
    }
    return list;
}

static void put_waste(json_t *object, const char *key, const lab_cache_waste *w) {
    json_t *o = json_object();
    put_whole(o, "records", w->records);
    put_whole(o, "bytes", w->bytes);
    json_object_set_new(object, key, o);
}

static int print_json(const lab_cache_folder *f) {
    const struct sums s = sum_groups(f);
    json_t *o = json_object();
    put_whole(o, "files", f->files);
    put_whole(o, "bytes", f->bytes);
    put_whole(o, "pages", s.pages);
    put_whole(o, "states", s.states);
    put_whole(o, "tokens", s.tokens);
    put_whole(o, "contexts", s.contexts);
    put_waste(o, "older", &f->older);
    put_waste(o, "expired", &f->expired);
    put_waste(o, "forgotten", &f->forgotten);
    put_whole(o, "damaged", f->damaged);
    put_whole(o, "torn_ends", f->torn);
    json_object_set_new(o, "places", json_places(f));
    json_object_set_new(o, "groups", json_groups(f));
    return json_print(&COMMAND, o);
}

/* ---- as text --------------------------------------------------------------------------------- */

static const char *when_text(uint64_t seconds, char out[24]) {
    const time_t t = (time_t)seconds;
    struct tm tm;
    if (seconds == 0 || seconds > INT32_MAX * 4ull || !localtime_r(&t, &tm) ||
        strftime(out, 24, "%Y-%m-%d %H:%M", &tm) == 0)
        strcpy(out, "-");
    return out;
}

static void print_places(const lab_cache_folder *f) {
    for (size_t i = 0; i < f->n_places; i++) {
        const lab_cache_damage *p = &f->places[i];
        printf("%s at %llu: %llu bytes %s\n", p->file, (unsigned long long)p->offset,
               (unsigned long long)p->bytes,
               p->torn ? "of a write that was cut off, or is under way: no harm" : "damaged");
    }
    if (f->damaged + f->torn > f->n_places)
        printf("... and %llu more places\n",
               (unsigned long long)(f->damaged + f->torn - f->n_places));
}

static int print_list(const lab_cache_folder *f) {
    char size[24], when[24];
    if (f->n_groups > 0)
        printf("%-12s  %-12s  %9s %7s %10s %11s  %-16s  %s\n", "context", "salt's root", "pages",
               "states", "tokens", "size", "last written", "formats");
    for (size_t i = 0; i < f->n_groups; i++) {
        const lab_cache_group *g = &f->groups[i];
        printf("%-12.12s  %-12.12s  %9llu %7llu %10llu %11s  %-16s  %s\n", g->context, g->root,
               (unsigned long long)g->pages, (unsigned long long)g->states,
               (unsigned long long)g->tokens, human_bytes((double)g->bytes, size),
               when_text(g->last_written, when), g->formats);
    }
    return finish_output(&COMMAND);
}

static void print_sums(const lab_cache_folder *f) {
    const struct sums s = sum_groups(f);
    char all[24], used[24], wasted[24];
    printf("%llu files, %s\n", (unsigned long long)f->files, human_bytes((double)f->bytes, all));
    printf("%llu pages and %llu states of %llu contexts with %llu salts: %llu tokens, %s\n",
           (unsigned long long)s.pages, (unsigned long long)s.states,
           (unsigned long long)s.contexts, (unsigned long long)f->n_groups,
           (unsigned long long)s.tokens, human_bytes((double)s.bytes, used));
    printf("%llu older copies, %llu expired and %llu forgotten records: %s that gc frees\n",
           (unsigned long long)f->older.records, (unsigned long long)f->expired.records,
           (unsigned long long)f->forgotten.records, human_bytes((double)wasted_bytes(f), wasted));
    printf("%llu places damaged, %llu torn ends\n", (unsigned long long)f->damaged,
           (unsigned long long)f->torn);
}

/* ---- actions --------------------------------------------------------------------------------- */

static bool on_progress(void *user, size_t done, size_t total) {
    struct progress *p = user;
    p->total = total;
    progress_step(p, done);
    return !interrupted();
}

static int read_folder(const struct cache_folder_args *a, bool payloads, lab_cache_folder *f) {
    struct progress progress;
    kvasir_error err;
    catch_interrupt();
    progress_start(&progress, a->quiet ? NULL : "reading", 0, "bytes");
    const kvasir_status status =
        lab_cache_folder_read(a->dir, payloads, on_progress, &progress, f, &err);
    progress_end(&progress);
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    return status == KVASIR_OK ? EXIT_GOOD : library_error(&COMMAND, &err);
}

static int run_ls(const struct cache_folder_args *a) {
    lab_cache_folder f;
    int code = read_folder(a, false, &f);
    if (code)
        return code;
    code = a->json ? print_json(&f) : print_list(&f);
    lab_cache_folder_free(&f);
    return code;
}

static int run_stat(const struct cache_folder_args *a) {
    lab_cache_folder f;
    int code = read_folder(a, false, &f);
    if (code)
        return code;
    if (!a->json)
        print_sums(&f);
    code = a->json ? print_json(&f) : finish_output(&COMMAND);
    lab_cache_folder_free(&f);
    return code;
}

static int run_verify(const struct cache_folder_args *a) {
    lab_cache_folder f;
    int code = read_folder(a, true, &f);
    if (code)
        return code;
    if (!a->json) {
        print_places(&f);
        print_sums(&f);
    }
    code = a->json ? print_json(&f) : finish_output(&COMMAND);
    if (!code && f.damaged)
        code = run_error(&COMMAND, "%s: damaged in %llu places; servers compute such pages again",
                         a->dir, (unsigned long long)f.damaged);
    lab_cache_folder_free(&f);
    return code;
}

static int print_change(const struct cache_folder_args *a, uint64_t before, uint64_t after) {
    char was[24], is[24];
    if (!a->json) {
        printf("%s before, %s now\n", human_bytes((double)before, was),
               human_bytes((double)after, is));
        return finish_output(&COMMAND);
    }
    json_t *o = json_object();
    put_whole(o, "bytes_before", before);
    put_whole(o, "bytes", after);
    return json_print(&COMMAND, o);
}

static int run_gc(const struct cache_folder_args *a) {
    uint64_t before, after;
    kvasir_error err;
    const uint64_t limit = (uint64_t)((double)a->limit_gb * (double)(1 << 30));
    if (lab_cache_folder_compact(a->dir, limit, &before, &after, &err) != KVASIR_OK)
        return library_error(&COMMAND, &err);
    return print_change(a, before, after);
}

static int run_clear(const struct cache_folder_args *a) {
    uint64_t removed;
    kvasir_error err;
    if (lab_cache_folder_clear(a->dir, &removed, &err) != KVASIR_OK)
        return library_error(&COMMAND, &err);
    return print_change(a, removed, 0);
}

static const struct {
    const char *name;
    int (*run)(const struct cache_folder_args *a);
} ACTIONS[] = {
    {"ls", run_ls}, {"stat", run_stat},   {"verify", run_verify},
    {"gc", run_gc}, {"clear", run_clear},
};

int cache_main(int argc, char **argv) {
    struct cache_folder_args a = {0};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    for (size_t i = 0; i < sizeof ACTIONS / sizeof *ACTIONS; i++)
        if (strcmp(ACTIONS[i].name, a.action) == 0) {
            if (a.limit_gb > 0 && ACTIONS[i].run != run_gc)
                return usage_error(&COMMAND, "--cache-disk-gb: only allowed with gc");
            return ACTIONS[i].run(&a);
        }
    return usage_error(&COMMAND, "\"%.60s\" is not ls, stat, verify, gc or clear", a.action);
}
