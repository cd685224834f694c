/* SPDX-License-Identifier: Apache-2.0 */
/* What a test of random programs prints if an assert, abort(), a bad address or a sanitizer ends
 * it, so that its seed is not lost. */
#ifndef LAST_WORDS_H
#define LAST_WORDS_H

/* Sets the text that is written to stdout at such an end. If `next` is not NULL, this program is
 * then started again with these arguments (without its name; NULL after the last). Both are
 * borrowed until the next call. text NULL: the program ends as if this had never been called. The
 * first call makes stdout write every line at once. */
void last_words(const char *text, char *const *next);
/* Starts the program again at once; needs an earlier call of last_words. */
_Noreturn void begin_anew(char *const *arguments);

#endif
