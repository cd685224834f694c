/* SPDX-License-Identifier: Apache-2.0 */
/* hub_transfer.c: GET of JSON and of files, with libcurl.
 *
 * A file is written to a part, which a later call goes on with: a Range request for what is
 * missing. A server that sends the whole file instead is believed, and the part begins again. After
 * a cut connection, a server's error (5xx) or "too many requests" (429) the request is repeated,
 * with a pause that grows while nothing comes, or for as long as the server says. The sha256 is
 * taken while bytes arrive; a file that was put together from several answers and has the wrong one
 * is downloaded once more as a whole.
 *
 * Locks stay: a lock that is removed could be held twice.
 *
 * The token is an Authorization header, which libcurl sends to the first host only, not to the one
 * (nor the port) that a redirect names. Nothing secret goes over plain HTTP but to this machine.
 */
#include "hub/hub_internal.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "kvasir.h"
#include "util/json.h"

static const size_t JSON_MAX = (size_t)64 << 20;
enum { TRIES = 5, PAUSE_MOST = 60, STALL_SECONDS = 60 };

/* ---- paths and room -------------------------------------------------------------------------- */

kvasir_status hub_join(char out[HUB_PATH_MAX], const char *dir, const char *name,
                       kvasir_error *err) {
    const int n = snprintf(out, HUB_PATH_MAX, "%s/%s", dir, name);
    return n > 0 && n < HUB_PATH_MAX - 16
               ? KVASIR_OK
               : fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is too long", dir);
}

kvasir_status hub_check_room(const char *dir, uint64_t bytes, kvasir_error *err) {
    struct statvfs fs;
    if (statvfs(dir, &fs) != 0)
        return KVASIR_OK; /* a write will say it */
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes <= room)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_IO,
                "%s: %llu MiB are to be written and %llu MiB are free: make room there or choose "
                "another folder",
                dir, (unsigned long long)(bytes >> 20) + 1, (unsigned long long)(room >> 20));
}

/* ---- sums ------------------------------------------------------------------------------------ */

void hub_sum_text(crypto_hash_sha256_state *sum, char out[HUB_SHA_BYTES]) {
    unsigned char bytes[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(sum, bytes);
    sodium_bin2hex(out, HUB_SHA_BYTES, bytes, sizeof bytes);
}

/* Adds the first `bytes` of an open file. */
static kvasir_status sum_bytes(const struct hub *h, int fd, const char *path, uint64_t bytes,
                               crypto_hash_sha256_state *sum, kvasir_error *err) {
    enum { CHUNK = 1 << 20 };
    unsigned char *chunk = mem_alloc(CHUNK);
    kvasir_status status = KVASIR_OK;
    if (!chunk)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory");
    for (uint64_t at = 0; at < bytes && status == KVASIR_OK;) {
        const ssize_t n = pread(fd, chunk, CHUNK, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            status = fail(err, KVASIR_ERR_IO, "%s: %s", path, n ? strerror(errno) : "is shorter");
        else
            crypto_hash_sha256_update(sum, chunk, (size_t)n);
        at += (uint64_t)(n > 0 ? n : 0);
        if (status == KVASIR_OK && h->on_progress && !h->on_progress(h->user, path, at, bytes))
            status = fail(err, KVASIR_ERR_CANCELLED, "interrupted");
    }
    mem_free(chunk);
    return status;
}

kvasir_status hub_file_sum(const struct hub *h, const char *path, char out[HUB_SHA_BYTES],
                           kvasir_error *err) {
    crypto_hash_sha256_state sum;
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        const int code = errno;
        if (fd >= 0)
            close(fd);
        return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(code));
    }
    crypto_hash_sha256_init(&sum);
    const kvasir_status status = sum_bytes(h, fd, path, (uint64_t)st.st_size, &sum, err);
    close(fd);
    hub_sum_text(&sum, out);
    return status;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* One answer. Its body goes to `text` or, if fd >= 0 and the status is 200 or 206, to the file. */
struct answer {
    const struct hub *hub;
    const struct hub_request *request;
    CURL *curl;
    struct text_buf text;
    int fd;
    uint64_t at, most;   /* where the next byte of the file goes; the file's size; 0: not known */
    uint64_t bytes;      /* that have come */
    int64_t range_start; /* of the answer; -1: it does not say */
    crypto_hash_sha256_state sum;
    bool begun, cancelled, no_memory, too_long;
    int error; /* errno of a write */
    long status, retry_after;
};

static bool is_loopback(const char *url) {
    static const char *const HOSTS[] = {"http://127.0.0.1", "http://localhost", "http://[::1]"};
    for (size_t i = 0; i < sizeof HOSTS / sizeof *HOSTS; i++) {
        const size_t n = strlen(HOSTS[i]);
        if (strncmp(url, HOSTS[i], n) == 0 && (!url[n] || strchr(":/", url[n])))
            return true;
    }
    return false;
}

static size_t on_header(char *data, size_t size, size_t n, void *user) {
    struct answer *a = user;
    char line[256];
    unsigned long long start;
    n *= size;
    snprintf(line, sizeof line, "%.*s", (int)min_size(n, sizeof line - 1), data);
    if (strncmp(line, "HTTP/", 5) == 0) { /* of another answer, after a redirect */
        a->range_start = -1;
        a->retry_after = 0;
    } else if (strncasecmp(line, "retry-after:", 12) == 0) {
        a->retry_after = strtol(line + 12, NULL, 10);
    } else if (strncasecmp(line, "content-range:", 14) == 0 &&
               sscanf(line + 14, " bytes %llu-", &start) == 1) {
        a->range_start = (int64_t)start;
    }
    return n;
}

/* The first bytes of an answer have come: does it go on where the file ends? */
static bool begin_body(struct answer *a) {
    a->begun = true;
    curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, &a->status);
    if (a->fd < 0 || a->status == 206)
        return a->fd < 0 || a->range_start == (int64_t)a->at;
    if (a->status != 200 || a->at == 0)
        return true;
    a->at = 0; /* the whole file after all */
    crypto_hash_sha256_init(&a->sum);
    if (ftruncate(a->fd, 0) == 0)
        return true;
    a->error = errno;
    return false;
}

static bool put_file(struct answer *a, const char *data, size_t n) {
    ASSERT(!a->most || a->at <= a->most);
    a->too_long = a->most && n > a->most - a->at;
    if (a->too_long)
        return false;
    crypto_hash_sha256_update(&a->sum, (const unsigned char *)data, n);
    while (n) {
        const ssize_t done = pwrite(a->fd, data, n, (off_t)a->at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            a->error = errno;
            return false;
        }
        data += done;
        n -= (size_t)done;
        a->at += (uint64_t)done;
        a->bytes += (uint64_t)done;
    }
    return true;
}

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    struct answer *a = user;
    n *= size;
    if (!a->begun && !begin_body(a))
        return 0;
    if (a->fd >= 0 && (a->status == 200 || a->status == 206))
        return put_file(a, data, n) ? n : 0;
    a->too_long = n > JSON_MAX - a->text.len;
    if (a->too_long || (a->no_memory = !text_append(&a->text, data, n)))
        return 0;
    return n;
}

static bool go_on(struct answer *a) {
    const struct hub *h = a->hub;
    a->cancelled = a->cancelled ||
                   (h->on_progress && !h->on_progress(h->user, a->request->what, a->at, a->most));
    return !a->cancelled;
}

static int on_wait(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)a, (void)b, (void)c, (void)d;
    return !go_on(user);
}

static struct curl_slist *headers_of(const struct hub *h, const struct hub_request *r, bool *good) {
    struct curl_slist *list = NULL, *more;
    char line[HUB_TEXT_MAX + 64];
    *good = true;
    if (r->accept) {
        snprintf(line, sizeof line, "Accept: %s", r->accept);
        list = curl_slist_append(list, line);
        *good = list != NULL;
    }
    if (*good && r->token && *h->hf_token) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", h->hf_token);
        more = curl_slist_append(list, line);
        *good = more != NULL;
        list = more ? more : list;
    }
    return list;
}

static void set_options(CURL *c, struct answer *a, char *why) {
    const struct hub_request *r = a->request;
    const bool safe = strncmp(r->url, "https:", 6) == 0;
    curl_easy_setopt(c, CURLOPT_URL, r->url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, safe ? "https" : "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, 8L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_wait);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
}

/* What an answer that broke off means. KVASIR_OK: the request may be repeated. */
static kvasir_status judge(const struct answer *a, const char *why, kvasir_error *err) {
    const char *what = a->request->what;
    if (a->cancelled)
        return fail(err, KVASIR_ERR_CANCELLED, "interrupted");
    if (a->no_memory)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", what);
    if (a->error)
        return fail(err, KVASIR_ERR_IO, "%s: cannot write: %s", what, strerror(a->error));
    if (a->too_long)
        return fail(err, KVASIR_ERR_IO, "%s: the server sends more than it said", what);
    fail(err, KVASIR_ERR_IO, "%s: %s", what, why);
    return KVASIR_OK;
}

/* One request. *again: it failed in a way that may be over next time, and err says how. */
static kvasir_status perform(struct answer *a, bool *again, kvasir_error *err) {
    char why[CURL_ERROR_SIZE] = "", agent[64], range[32];
    bool good;
    *again = false;
    a->begun = false;
    a->status = a->retry_after = 0;
    a->range_start = -1;
    a->text.len = 0;
    a->curl = curl_easy_init();
    struct curl_slist *headers = headers_of(a->hub, a->request, &good);
    if (!a->curl || !good) {
        curl_slist_free_all(headers);
        curl_easy_cleanup(a->curl);
        return fail(err, KVASIR_ERR_MEMORY, "out of memory");
    }
    snprintf(agent, sizeof agent, "kvasir/%s", kvasir_version());
    set_options(a->curl, a, why);
    curl_easy_setopt(a->curl, CURLOPT_USERAGENT, agent);
    curl_easy_setopt(a->curl, CURLOPT_HTTPHEADER, headers);
    if (a->at) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)a->at);
        curl_easy_setopt(a->curl, CURLOPT_RANGE, range);
    }
    const CURLcode result = curl_easy_perform(a->curl);
    curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, &a->status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(a->curl);
    a->curl = NULL;
    kvasir_status status = KVASIR_OK;
    if (result) {
        status = judge(a, *why ? why : curl_easy_strerror(result), err);
        *again = status == KVASIR_OK;
    } else if (a->status == 429 || a->status >= 500) {
        *again = true;
        fail(err, KVASIR_ERR_IO, "%s: the server answers HTTP %ld", a->request->what, a->status);
    }
    return status;
}

/* Before the next try; false: interrupted. */
static bool pause_for(struct answer *a, double seconds, const kvasir_error *why) {
    char line[HUB_TEXT_MAX + 128];
    snprintf(line, sizeof line, "%s; trying again in %.0f s", why->text, seconds);
    if (a->hub->on_note)
        a->hub->on_note(a->hub->user, line);
    const double end = clock_seconds() + seconds;
    while (go_on(a) && clock_seconds() < end)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return !a->cancelled;
}

/* Until an answer is complete. KVASIR_OK with any status but those that are tried again. */
static kvasir_status perform_often(struct answer *a, kvasir_error *err) {
    kvasir_error why = {0};
    for (int tries = 0;;) {
        const uint64_t before = a->bytes;
        bool again;
        const kvasir_status status = perform(a, &again, &why);
        const bool short_of = a->fd >= 0 && a->most && a->at < a->most && a->status < 300;
        if (status == KVASIR_OK && !again && short_of) { /* an answer of HTTP/1.0 that was cut */
            again = true;
            fail(&why, KVASIR_ERR_IO, "%s: the answer broke off", a->request->what);
        }
        tries = a->bytes > before ? 0 : tries + 1;
        if (status != KVASIR_OK || (again && tries >= TRIES)) {
            if (err)
                *err = why;
            return status != KVASIR_OK ? status : KVASIR_ERR_IO;
        }
        if (!again)
            return KVASIR_OK;
        double seconds = tries ? (double)(1 << (tries - 1)) / 2 : 0.1;
        if (a->retry_after > 0)
            seconds = a->retry_after < PAUSE_MOST ? (double)a->retry_after : PAUSE_MOST;
        if (!pause_for(a, seconds, &why))
            return fail(err, KVASIR_ERR_CANCELLED, "interrupted");
    }
}

static kvasir_status check_request(const struct hub *h, const struct hub_request *r,
                                   kvasir_error *err) {
    if (h->offline)
        return fail(err, KVASIR_ERR_IO, "%s: is not on this machine, and HF_HUB_OFFLINE is set",
                    r->what);
    if (r->token && *h->hf_token && strncmp(r->url, "http:", 5) == 0 && !is_loopback(r->url))
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "%s: a token is not sent over plain HTTP: use an https URL or unset HF_TOKEN",
                    r->what);
    return KVASIR_OK;
}

kvasir_status hub_refused(const struct hub *h, const struct hub_request *r, long status,
                          kvasir_error *err) {
    const bool hf = r->token, token = *h->hf_token != 0;
    if (hf && (status == 401 || status == 403) && !token)
        return fail(err, KVASIR_ERR_IO,
                    "%s: does not exist, or needs a token (HTTP %ld): check the name; for a "
                    "private or gated model set HF_TOKEN",
                    r->what, status);
    if (hf && (status == 401 || status == 403))
        return fail(err, KVASIR_ERR_IO,
                    "%s: the token in HF_TOKEN may not read it (HTTP %ld): accept the model's "
                    "terms on its page, or use another token",
                    r->what, status);
    if (status == 404)
        return fail(err, KVASIR_ERR_IO, "%s: not found (HTTP 404): check the name", r->what);
    return fail(err, KVASIR_ERR_IO, "%s: the server answers HTTP %ld", r->what, status);
}

kvasir_status hub_get_json(const struct hub *h, const struct hub_request *r, json_t **out,
                           long *http, kvasir_error *err) {
    struct answer a = {.hub = h, .request = r, .fd = -1};
    *out = NULL;
    TRY(check_request(h, r, err));
    kvasir_status status = perform_often(&a, err);
    *http = a.status;
    if (status == KVASIR_OK && a.status == 200) {
        status = json_load_bounded(a.text.data ? a.text.data : "", a.text.len, 0, 0, out, err);
        if (status != KVASIR_OK)
            fail_prefix(err, r->what);
    }
    text_free(&a.text);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Everything that the file's part has is summed. */
static kvasir_status open_part(struct answer *a, const struct hub_file *f, kvasir_error *err) {
    struct stat st;
    char line[HUB_TEXT_MAX];
    a->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (a->fd < 0 || fstat(a->fd, &st) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", f->part, strerror(errno));
    crypto_hash_sha256_init(&a->sum);
    a->at = (uint64_t)st.st_size;
    if (f->bytes && a->at > f->bytes) {
        a->at = 0;
        if (ftruncate(a->fd, 0) != 0)
            return fail(err, KVASIR_ERR_IO, "%s: %s", f->part, strerror(errno));
    }
    if (a->at == 0)
        return KVASIR_OK;
    snprintf(line, sizeof line, "%.200s: going on after %llu MiB", a->request->what,
             (unsigned long long)(a->at >> 20));
    if (a->hub->on_note)
        a->hub->on_note(a->hub->user, line);
    return sum_bytes(a->hub, a->fd, a->request->what, a->at, &a->sum, err);
}

static kvasir_status begin_again(struct answer *a, const struct hub_file *f, kvasir_error *err) {
    a->at = 0;
    crypto_hash_sha256_init(&a->sum);
    return ftruncate(a->fd, 0) == 0 ? KVASIR_OK
                                    : fail(err, KVASIR_ERR_IO, "%s: %s", f->part, strerror(errno));
}

/* Fetches what the part lacks. sum: of all of it. */
static kvasir_status fill_part(struct answer *a, const struct hub_file *f, char sum[HUB_SHA_BYTES],
                               kvasir_error *err) {
    ASSERT(a->fd >= 0);
    if (!f->bytes || a->at < f->bytes) {
        TRY(perform_often(a, err));
        if (a->status == 416) { /* the part is not of this file */
            TRY(begin_again(a, f, err));
            TRY(perform_often(a, err));
        }
        if (a->status != 200 && a->status != 206)
            return hub_refused(a->hub, a->request, a->status, err);
    }
    crypto_hash_sha256_state taken = a->sum;
    hub_sum_text(&taken, sum);
    return KVASIR_OK;
}

static kvasir_status complete(struct answer *a, struct hub_file *f, kvasir_error *err) {
    char sum[HUB_SHA_BYTES];
    TRY(open_part(a, f, err));
    bool resumed = a->at > 0;
    for (;; resumed = false) {
        TRY(fill_part(a, f, sum, err));
        if (!*f->sha256 || strcmp(sum, f->sha256) == 0)
            break;
        TRY(begin_again(a, f, err));
        if (!resumed)
            return fail(err, KVASIR_ERR_IO,
                        "%s: what came has the sha256 %s instead of %s: it was deleted",
                        a->request->what, sum, f->sha256);
    }
    memcpy(f->sha256, sum, sizeof sum);
    if (fsync(a->fd) != 0 || rename(f->part, f->path) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", f->path, strerror(errno));
    return KVASIR_OK;
}

kvasir_status hub_get_file(const struct hub *h, const struct hub_request *r, struct hub_file *f,
                           kvasir_error *err) {
    struct answer a = {.hub = h, .request = r, .fd = -1, .most = f->bytes};
    ASSERT(strlen(f->sha256) == 0 || strlen(f->sha256) == 64);
    TRY(check_request(h, r, err));
    const int lock = open(f->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (lock < 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", f->lock, strerror(errno));
    kvasir_status status = KVASIR_OK;
    if (flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        status = fail(err, KVASIR_ERR_IO, "%s: another process is downloading it", r->what);
    else if (access(f->path, F_OK) != 0) /* nobody else has, meanwhile */
        status = complete(&a, f, err);
    text_free(&a.text);
    if (a.fd >= 0)
        close(a.fd);
    if (a.fd >= 0 && status != KVASIR_OK && a.at == 0)
        unlink(f->part); /* nothing has come */
    close(lock);
    return status;
}
