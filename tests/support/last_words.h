/* SPDX-License-Identifier: Apache-2.0 */
/* What a test of random programs says where an assert, abort(), a bad address or a sanitizer ends
 * it, so that its seed is not lost. */
#ifndef LAST_WORDS_H
#define LAST_WORDS_H

/* Writes the text to stdout at such an end; then, with `next` not NULL, this program begins anew
 * with these arguments (but its name; NULL behind the last one). Both are borrowed until the next
 * call. text NULL: it ends as if nothing had been asked for. The first call makes stdout write
 * every line at once. */
void last_words(const char *text, char *const *next);
/* Begins anew at once; after a call of last_words. */
_Noreturn void begin_anew(char *const *arguments);

#endif
