/* SPDX-License-Identifier: Apache-2.0 */
/* template_strftime.c: strftime_now. Formats like strftime(3) in the C locale, in UTC.
 *
 *     %[-_0]conversion      glibc's flags: - no padding, _ spaces, 0 zeros
 */
#include <stdio.h>
#include <time.h>

#include "text/template_internal.h"

static const char *const day_names[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday"};
static const char *const month_names[] = {"January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December"};

/* A number with glibc's flags. */
static void put_time(struct tpl *t, struct tpl_out *out, int value, int width, char pad,
                     char flag) {
    pad = flag == '_' ? ' ' : flag == '0' ? '0' : pad;
    width = flag == '-' ? 1 : width;
    tpl_out_printf(t, out, pad == '0' ? "%0*d" : "%*d", width, value);
}

static int days_of(int year) {
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0 ? 366 : 365;
}

/* A week belongs to the year of its Thursday (ISO 8601). */
static void iso_week(const struct tm *tm, int *year, int *week) {
    int thursday = tm->tm_yday - (tm->tm_wday + 6) % 7 + 3;
    *year = tm->tm_year + 1900;
    if (thursday < 0)
        thursday += days_of(--*year);
    else if (thursday >= days_of(*year))
        thursday -= days_of((*year)++);
    *week = thursday / 7 + 1;
    ASSERT(*week >= 1 && *week <= 53);
}

static bool put_time_number(struct tpl *t, struct tpl_out *out, char c, char flag,
                            const struct tm *tm) {
    int hour12 = tm->tm_hour % 12 ? tm->tm_hour % 12 : 12, year, week;
    iso_week(tm, &year, &week);
    const struct {
        char c;
        int value, width;
        char pad;
    } table[] = {
        {'d', tm->tm_mday, 2, '0'},
        {'e', tm->tm_mday, 2, ' '},
        {'m', tm->tm_mon + 1, 2, '0'},
        {'y', tm->tm_year % 100, 2, '0'},
        {'Y', tm->tm_year + 1900, 1, '0'},
        {'C', (tm->tm_year + 1900) / 100, 2, '0'},
        {'H', tm->tm_hour, 2, '0'},
        {'k', tm->tm_hour, 2, ' '},
        {'I', hour12, 2, '0'},
        {'l', hour12, 2, ' '},
        {'M', tm->tm_min, 2, '0'},
        {'S', tm->tm_sec, 2, '0'},
        {'j', tm->tm_yday + 1, 3, '0'},
        {'u', tm->tm_wday ? tm->tm_wday : 7, 1, '0'},
        {'w', tm->tm_wday, 1, '0'},
        {'U', (tm->tm_yday + 7 - tm->tm_wday) / 7, 2, '0'},
        {'W', (tm->tm_yday + 7 - (tm->tm_wday + 6) % 7) / 7, 2, '0'},
        {'V', week, 2, '0'},
        {'G', year, 1, '0'},
        {'g', year % 100, 2, '0'},
        {'f', 0, 6, '0'}, /* `now` is in whole seconds */
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].c == c) {
            put_time(t, out, table[i].value, table[i].width, table[i].pad, flag);
            return true;
        }
    return false;
}

static void put_time_format(struct tpl *t, struct tpl_out *out, const char *f, size_t len,
                            const struct tm *tm);

static bool put_time_text(struct tpl *t, struct tpl_out *out, char c, const struct tm *tm) {
    static const struct {
        char c;
        const char *format;
    } composed[] = {{'D', "%m/%d/%y"},
                    {'F', "%Y-%m-%d"},
                    {'R', "%H:%M"},
                    {'T', "%H:%M:%S"},
                    {'x', "%m/%d/%y"},
                    {'X', "%H:%M:%S"},
                    {'r', "%I:%M:%S %p"},
                    {'n', "\n"},
                    {'t', "\t"},
                    {'%', "%"},
                    {'z', ""},
                    {'Z', ""},
                    {'c', "%a %b %e %H:%M:%S %Y"}};
    const char *name = c == 'A' || c == 'a'               ? day_names[tm->tm_wday]
                       : c == 'B' || c == 'b' || c == 'h' ? month_names[tm->tm_mon]
                       : c == 'p'                         ? tm->tm_hour < 12 ? "AM" : "PM"
                       : c == 'P'                         ? tm->tm_hour < 12 ? "am" : "pm"
                                                          : NULL;
    if (name) {
        tpl_out_put(t, out, name, c == 'a' || c == 'b' || c == 'h' ? 3 : strlen(name));
        return true;
    }
    if (c == 's') {
        tpl_out_printf(t, out, "%lld", (long long)t->now);
        return true;
    }
    for (size_t i = 0; i < COUNT(composed); i++)
        if (composed[i].c == c) {
            put_time_format(t, out, composed[i].format, strlen(composed[i].format), tm);
            return true;
        }
    return false;
}

static void put_time_format(struct tpl *t, struct tpl_out *out, const char *f, size_t len,
                            const struct tm *tm) {
    for (size_t i = 0; i < len; i++) {
        char flag = 0;
        size_t k = i + 1;
        if (f[i] == '%' && k + 1 < len && (f[k] == '-' || f[k] == '_' || f[k] == '0'))
            flag = f[k++];
        bool done = f[i] == '%' && k < len &&
                    (put_time_number(t, out, f[k], flag, tm) || put_time_text(t, out, f[k], tm));
        if (done)
            i = k;
        else
            tpl_out_put(t, out, f + i, 1); /* unknown conversions are copied */
    }
}

tval tpl_strftime(struct tpl *t, const struct tpl_str *format) {
    struct tm tm;
    time_t now = (time_t)t->now;
    struct tpl_out out = {0};
    if (!gmtime_r(&now, &tm))
        tpl_fail(t, "the current time is not a date");
    tpl_charge_bytes(t, format->len);
    put_time_format(t, &out, format->data, format->len, &tm);
    return tpl_str_from_out(t, &out);
}
