/* SPDX-License-Identifier: Apache-2.0 */
/* language_format.c: the formats of JSON Schema as regular expressions. */
#include <string.h>

#include "grammar/language_internal.h"

#define DATE                                                                                       \
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)" \
    "|"                                                                                            \
    "02-(?:0[1-9]|1\\d|2[0-8]))|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|"                       \
    "(?:[02468][048]|[13579][26])00)-02-29)"
#define ZONE "(?:[zZ]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
/* A leap second is only accepted where the local time is UTC. */
#define CLOCK                                                                                      \
    "(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?" ZONE                                     \
    "|23:59:60(?:\\.\\d+)?(?:[zZ]|[+-]00:00))"
#define BYTE4 "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4  "(?:" BYTE4 "\\.){3}" BYTE4
#define H16   "[0-9A-Fa-f]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
    "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16             \
    ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16       \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16   \
    ")?::)"
#define LABEL    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOSTNAME LABEL "(?:\\." LABEL ")*"
#define ATEXT    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define EMAIL                                                                                      \
    "(?:" ATEXT "+(?:\\." ATEXT "+)*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" HOSTNAME              \
    "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])"
#define PCT   "%[0-9A-Fa-f]{2}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define AUTHORITY                                                                                  \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PCT ")*@)?(?:\\[(?:" IPV6                                 \
    "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PCT      \
    ")*)(?::\\d*)?"
#define AFTER_PATH "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define SCHEME     "[A-Za-z][A-Za-z0-9+.-]*"
#define HIER                                                                                       \
    "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR     \
    "*)*|)"
#define SEGMENT_NC "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" PCT ")+"
#define RELATIVE                                                                                   \
    "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" SEGMENT_NC "(?:/" PCHAR \
    "*)*|)"
#define UCS    "\\u{a0}-\\u{d7ff}\\u{f900}-\\u{fdcf}\\u{fdf0}-\\u{ffef}\\u{10000}-\\u{efffd}"
#define IPCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@" UCS "-]|" PCT ")"
#define IAUTHORITY                                                                                 \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:" UCS "-]|" PCT ")*@)?(?:\\[(?:" IPV6                          \
    "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=" UCS         \
    "-]|" PCT ")*)(?::\\d*)?"
#define IAFTER_PATH                                                                                \
    "(?:\\?(?:" IPCHAR                                                                             \
    "|[/?\\u{e000}-\\u{f8ff}\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}])*)?(?:#(?:" IPCHAR       \
    "|[/?])*)?"
#define IHIER                                                                                      \
    "(?://" IAUTHORITY "(?:/" IPCHAR "*)*|/(?:" IPCHAR "+(?:/" IPCHAR "*)*)?|" IPCHAR              \
    "+(?:/" IPCHAR "*)*|)"
#define ISEGMENT_NC "(?:[A-Za-z0-9._~!$&'()*+,;=@" UCS "-]|" PCT ")+"
#define IRELATIVE                                                                                  \
    "(?://" IAUTHORITY "(?:/" IPCHAR "*)*|/(?:" IPCHAR "+(?:/" IPCHAR "*)*)?|" ISEGMENT_NC         \
    "(?:/" IPCHAR "*)*|)"
#define VARNAME  "(?:\\w|" PCT ")(?:\\.?(?:\\w|" PCT "))*"
#define VARIABLE VARNAME "(?:\\*|:[1-9]\\d{0,3})?"
#define POINTER  "(?:/(?:[^/~]|~[01])*)*"

static const struct {
    const char *name, *expression;
} FORMATS[] = {
    {"date", DATE},
    {"time", CLOCK},
    {"date-time", DATE "[tT]" CLOCK},
    {"duration", "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:T(?:\\d+H(?:\\d+M"
                 "(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))?|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M"
                 "(?:\\d+S)?|\\d+S))"},
    {"email", EMAIL},
    {"hostname", HOSTNAME}, /* and at most HOST_MAX characters */
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", SCHEME ":" HIER AFTER_PATH},
    {"uri-reference", "(?:" SCHEME ":" HIER "|" RELATIVE ")" AFTER_PATH},
    {"iri", SCHEME ":" IHIER IAFTER_PATH},
    {"iri-reference", "(?:" SCHEME ":" IHIER "|" IRELATIVE ")" IAFTER_PATH},
    {"uri-template",
     "(?:[^\\x00-\\x20\"'<>\\\\^`{|}]|\\{[+#./;?&]?" VARIABLE "(?:," VARIABLE ")*\\})*"},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" POINTER ")"},
};

enum { HOST_MAX = 253 };

static kvasir_status with_most(struct grammar_budget *b, struct language *l, uint32_t most,
                               struct language **out, kvasir_error *err) {
    struct language *bounds;
    kvasir_status status = language_any(b, 0, most, &bounds, err);
    if (!status) {
        status = language_and(b, l, bounds, out, err);
        language_release(bounds);
    }
    language_release(l);
    return status;
}

kvasir_status language_format(struct grammar_budget *b, const char *name, struct language **out,
                              kvasir_error *err) {
    const char *expression = NULL;
    struct language *l;
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (strcmp(FORMATS[i].name, name) == 0)
            expression = FORMATS[i].expression;
    if (!expression)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "the format \"%.40s\" is not known", name);
    TRY(language_regex(b, (struct text_span){expression, strlen(expression)}, true, &l, err));
    if (strcmp(name, "hostname") == 0)
        return with_most(b, l, HOST_MAX, out, err);
    *out = l;
    return KVASIR_OK;
}
