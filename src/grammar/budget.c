/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c: what compiling a grammar may cost (struct grammar_budget). */
#include "grammar/recognizer.h"

bool budget_take(struct grammar_budget *b, uint64_t steps, size_t bytes) {
    if (steps > b->steps || bytes > b->bytes)
        return false;
    b->steps -= steps;
    b->bytes -= bytes;
    return true;
}

kvasir_status grammar_too_large(kvasir_error *err, const char *where) {
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "%s: costs more time or memory to enforce than allowed", where);
}
