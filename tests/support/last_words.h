/* SPDX-License-Identifier: Apache-2.0 */
/* What a test of random programs prints if an assert, abort(), a bad address or a sanitizer ends
 * it, so that its seed is not lost. */
#ifndef LAST_WORDS_H
#define LAST_WORDS_H

#include <stdbool.h>

/* Sets the text that is written to stdout at such an end. If `next` is not NULL, this program is
 * then started again with these arguments (without its name; NULL after the last). Both are
 * borrowed until the next call. text NULL: the program ends as if this had never been called. The
 * first call makes stdout write every line at once. */
void last_words(const char *text, char *const *next);
/* Starts the program again at once; needs an earlier call of last_words. */
_Noreturn void begin_anew(char *const *arguments);

/* Whether run(user) ends a child process in another way than by returning. The child has no last
 * words and prints nothing to stderr. Ends the program if there can be no child. */
bool fails_in_a_child(void (*run)(void *user), void *user);

#endif
