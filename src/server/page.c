/* SPDX-License-Identifier: Apache-2.0 */
/* page.c: the bytes of page.html between two symbols. CMake passes the file's path. */
#include "server/page.h"

_Static_assert(sizeof(size_t) == 8, "the length below is written as 8 bytes");

__asm__(".pushsection .rodata\n"
        ".global SERVER_PAGE, SERVER_PAGE_LEN\n"
        ".hidden SERVER_PAGE, SERVER_PAGE_LEN\n"
        "SERVER_PAGE:\n"
        ".incbin \"" SERVER_PAGE_FILE "\"\n"
        "server_page_end:\n"
        ".byte 0\n"
        ".balign 8\n"
        "SERVER_PAGE_LEN:\n"
        ".8byte server_page_end - SERVER_PAGE\n"
        ".popsection\n");
