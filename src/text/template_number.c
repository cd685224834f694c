/* SPDX-License-Identifier: Apache-2.0 */
/* template_number.c: decimal text to doubles and back.
 *
 * Doubles are printed like Python's repr: with the fewest digits that read back as the same double,
 * and with an exponent below 1e-4 and from 1e16 on. printf and strtod depend on the locale of the
 * process. The decimal point is replaced here, so that a program that calls setlocale gets the same
 * prompts.
 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/template_internal.h"

bool tpl_parse_double(const char *text, size_t len, double *out) {
    char copy[512];
    const char *point = localeconv()->decimal_point;
    size_t n = 0, point_len = strlen(point);
    for (size_t i = 0; i < len; i++) {
        if (n + point_len + 1 >= sizeof copy)
            return false;
        if (text[i] == '.') {
            memcpy(copy + n, point, point_len);
            n += point_len;
        } else if (strchr("0123456789+-eE", text[i]) && text[i]) {
            copy[n++] = text[i];
        } else {
            return false;
        }
    }
    copy[n] = 0;
    char *end;
    *out = strtod(copy, &end);
    return n > 0 && end == copy + n;
}

/* The fewest significant digits that read back as |value|, and its decimal exponent. digits has
 * room for 18. */
static int shortest_digits(double value, char *digits, int *exponent) {
    char text[64];
    int n = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(value));
        if (strtod(text, NULL) == fabs(value))
            break;
    }
    char *e = strchr(text, 'e');
    *exponent = (int)strtol(e + 1, NULL, 10);
    for (char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9') /* the decimal point may be any text */
            digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    return n;
}

size_t tpl_print_double(char *to, double value) {
    char digits[32], *o = to;
    int exponent;
    if (isnan(value) || isinf(value))
        return (size_t)sprintf(to, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    int n = shortest_digits(value, digits, &exponent);
    if (signbit(value))
        *o++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *o++ = digits[0];
        if (n > 1)
            *o++ = '.';
        memcpy(o, digits + 1, (size_t)n - 1);
        o += n - 1;
        o += sprintf(o, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return (size_t)(o - to);
    }
    for (int i = exponent < 0 ? exponent : 0; i < n || i <= exponent + 1; i++) {
        if (i == exponent + 1)
            *o++ = '.';
        *o++ = i >= 0 && i < n ? digits[i] : '0';
    }
    ASSERT(o - to < TPL_FLOAT_CHARS);
    return (size_t)(o - to);
}

void tpl_put_double(struct tpl *t, struct tpl_out *out, double value, char conversion,
                    int precision, bool alternate) {
    char format[8], text[800];
    _Static_assert(sizeof text > 309 + 1 + TPL_PRECISION_MAX, "the longest double fits");
    ASSERT(precision >= 0 && precision <= TPL_PRECISION_MAX);
    snprintf(format, sizeof format, alternate ? "%%#.*%c" : "%%.*%c", conversion);
    int n = snprintf(text, sizeof text, format, precision, value);
    if (n < 0 || (size_t)n >= sizeof text)
        tpl_fail(t, "the number has too many digits");
    const char *point = localeconv()->decimal_point, *at = strstr(text, point);
    if (!at) {
        tpl_out_put(t, out, text, (size_t)n);
        return;
    }
    tpl_out_put(t, out, text, (size_t)(at - text));
    tpl_out_lit(t, out, ".");
    at += strlen(point);
    tpl_out_put(t, out, at, strlen(at));
}

void tpl_put_number(struct tpl *t, struct tpl_out *out, tval v) {
    char text[TPL_FLOAT_CHARS];
    if (v.type == TPL_INT)
        tpl_out_printf(t, out, "%lld", (long long)v.i);
    else
        tpl_out_put(t, out, text, tpl_print_double(text, v.f));
}
